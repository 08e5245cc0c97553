"""Cosmos as a target: a decoder whose layers are called one by one, and the texts of the rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer
from mmspec.sampling.rows import put_rows
from mmspec.vision.cosmos_ar.transformer import CosmosBlock, CosmosTransformer


class CosmosDecoder(DecoderLayers):
    """The layers of a transformer.

    Args:
        transformer: The transformer.
        contexts: Keys and values of the rows' texts in each layer; empty without texts. The list is shared with the
            target, which drops rows from it.
    """

    def __init__(self, transformer: CosmosTransformer, contexts: list[tuple[Tensor, Tensor]]) -> None:
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
                hidden = hidden + text.attend(queries, *self._contexts[layer.layer_idx], None)
            return hidden + layer.feed_forward(layer.ffn_norm(hidden))

        return embeds, run


class CosmosTarget(CausalTarget):
    """A transformer with the given tokens of its videos, and their texts; see `mmspec.decoding.target.Target`.

    Args:
        transformer: The transformer.
        given: The tokens that the videos begin with, int64 [B, T], with their mark.
        context: Features of the texts, [B, S, C]; None for models without one.
        length: Tokens to generate.
        slack: Slots that a window may extend past the end of the video.
    """

    def __init__(
        self, transformer: CosmosTransformer, given: Tensor, context: Tensor | None, length: int, slack: int
    ) -> None:
        self._contexts = [] if context is None else transformer.contexts(context)
        self._given = given.shape[1]
        vocab_size, device = int(transformer.config["vocab_size"]), transformer.device
        backbone = Backbone(
            CosmosDecoder(transformer, self._contexts), transformer.tok_embeddings, transformer.output, vocab_size,
            device,
        )  # fmt: skip
        positions = torch.arange(given.shape[1], device=device).expand(1, *given.shape)
        mask = torch.ones_like(given, dtype=torch.bool)
        super().__init__(backbone, Prompt(transformer.tok_embeddings(given), mask, positions), None, length, slack)

    def select_rows(self, row_ids: list[int]) -> None:
        super().select_rows(row_ids)
        self._contexts[:] = [(keys[row_ids], values[row_ids]) for keys, values in self._contexts]

    def can_join(self, other: object) -> bool:
        """Whether the rows of `other` can join: their texts have as many features, and as many frames are given."""
        if not (isinstance(other, CosmosTarget) and super().can_join(other) and self._given == other._given):
            return False
        ours, theirs = ([keys.shape[2] for keys, _ in target._contexts[:1]] for target in (self, other))
        return ours == theirs

    def join(self, other: CausalTarget, row_ids: list[int]) -> None:
        super().join(other, row_ids)
        assert isinstance(other, CosmosTarget), "can_join"
        self._contexts[:] = [
            (put_rows(keys, new_keys, row_ids), put_rows(values, new_values, row_ids))
            for (keys, values), (new_keys, new_values) in zip(self._contexts, other._contexts, strict=True)
        ]
