"""Cosmos as a target: a decoder whose layers are called one by one, and the texts of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer
from mmspec.vision.cosmos_ar.transformer import CosmosBlock, CosmosTransformer


class TextContexts:
    """What the layers read of the rows' texts, shared by all decoders of a target.

    Args:
        layers: Keys and values of the texts in each layer; empty without texts.
    """

    ROWS = ("layers",)

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.layers = tuple(layers)


class CosmosDecoder(DecoderLayers):
    """The layers of a transformer.

    Args:
        contexts: What the layers read of the texts.
    """

    def __init__(self, transformer: CosmosTransformer, contexts: TextContexts) -> None:
        super().__init__(transformer.layers, transformer.norm)
        self._contexts = contexts
        angles = transformer.angles().to(transformer.device)
        self._cos, self._sin = angles.cos().to(transformer.dtype), angles.sin().to(transformer.dtype)
        added = transformer.added()
        self._added = None if added is None else added.to(transformer.device, transformer.dtype)

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        added = None if self._added is None else self._added[positions]

        def rotated(x: Tensor) -> Tensor:
            one, two = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-two, one], dim=-1) * sin

        def run(layer: CosmosBlock, hidden: Tensor) -> Tensor:
            if added is not None:
                hidden = hidden + added
            attention, read = layer.attention, layer.attention_norm(hidden)
            keys, values = attention.keys_and_values(read)
            keys, values = cache.update(rotated(keys), values, layer.layer_idx)
            hidden = hidden + attention.attend(rotated(attention.queries(read)), keys, values, mask)
            if layer.cross_attention is not None and layer.cross_attention_norm is not None:
                text = layer.cross_attention
                queries = text.queries(layer.cross_attention_norm(hidden))
                hidden = hidden + text.attend(queries, *self._contexts.layers[layer.layer_idx], None)
            return hidden + layer.feed_forward(layer.ffn_norm(hidden))

        return embeds, run


class CosmosTarget(CausalTarget):
    """A transformer with the given tokens of its videos, and their texts; see `mmspec.decoding.target.Target`.

    Args:
        given: The tokens that the videos begin with, int64 [B, T], with their mark.
        context: Features of the texts, [B, S, C]; None for models without one.
        length: Tokens to generate.
        slack: Slots that a window may extend past the end of the video.
    """

    ROWS = (*CausalTarget.ROWS, "_contexts")
    SAME = (*CausalTarget.SAME, "_given")

    def __init__(
        self, transformer: CosmosTransformer, given: Tensor, context: Tensor | None, length: int, slack: int
    ) -> None:
        self._contexts = TextContexts(() if context is None else transformer.contexts(context))
        self._given = given.shape[1], None if context is None else context.shape[1]
        vocab_size, device = int(transformer.config["vocab_size"]), transformer.device
        decoder = CosmosDecoder(transformer, self._contexts)
        backbone = Backbone(decoder, transformer.tok_embeddings, transformer.output, vocab_size, device)
        positions = torch.arange(given.shape[1], device=device).expand(1, *given.shape)
        mask = torch.ones_like(given, dtype=torch.bool)
        super().__init__(backbone, Prompt(transformer.tok_embeddings(given), mask, positions), None, length, slack)
