"""LFM2: decoders in which most layers mix the latest tokens by a short convolution instead of attention.

A convolution of L taps reads its inputs of the latest L tokens. transformers keeps those alone, so that a rejected
draft could not be taken back. Here the inputs of all tokens are kept by slot, as keys and values are: a token reads
those of the L - 1 tokens that precede it in its own sequence, in a window or along the branch of a tree, and a row is
rolled back by writing again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmspec.hf.cache_name import cache_input
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer


class ShortConvolutionLayers(DecoderLayers):
    """The layers of a `Lfm2Model`.

    Args:
        decoder: The model.
    """

    def __init__(self, decoder: Any) -> None:
        super().__init__(decoder.layers, decoder.embedding_norm)
        self.config = decoder.config
        self.module = decoder
        self._rotary = decoder.rotary_emb

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        rotations = self._rotary(embeds, position_ids=positions)
        slots, known = latest_slots(mask[:, 0] == 0, self.config.conv_L_cache)
        slots, known = (each.expand(len(embeds), -1, -1) for each in (slots, known))

        def run(layer: Any, hidden: Tensor) -> Tensor:
            normed = layer.operator_norm(hidden)
            if layer.is_attention_layer:
                mixed, _ = layer.self_attn(
                    normed, position_embeddings=rotations, attention_mask=mask, **cache_input(layer.self_attn, cache)
                )
            else:
                mixed = convolve(layer.conv, normed, slots, known, cache)
            hidden = hidden + mixed
            return hidden + layer.feed_forward(layer.ffn_norm(hidden))

        return embeds, run


def latest_slots(visible: Tensor, taps: int) -> tuple[Tensor, Tensor]:
    """The cache slots of the latest tokens of each token's sequence, itself included.

    Args:
        visible: bool [R, W, end], the slots that a token attends to; its own is the last of them.
        taps: L, the number of latest tokens.

    Returns:
        Slots int64 [R, W, L], the token's own last, and whether there is such a token, bool [R, W, L].
    """
    count = visible.cumsum(-1)
    goal = count[..., -1:] - torch.arange(taps - 1, -1, -1, device=visible.device)
    return torch.searchsorted(count, goal.clamp(min=1)), goal > 0


def convolve(layer: Any, hidden: Tensor, slots: Tensor, known: Tensor, cache: Any) -> Tensor:
    """A `Lfm2ShortConv` for tokens whose latest tokens are in `slots`.

    Args:
        layer: The module.
        hidden: [R, W, D].
        slots: int64 [R, W, L]; see `latest_slots`.
        known: bool [R, W, L].
        cache: Keeps the inputs, the first half of each as a key and the second as a value.
    """
    before, after, x = layer.in_proj(hidden).chunk(3, dim=-1)
    halves = (before * x).chunk(2, dim=-1)
    stored = cache.update(halves[0][:, None], halves[1][:, None], layer.layer_idx)
    index = slots.flatten(1)[..., None]
    latest = torch.cat([half[:, 0].gather(1, index.expand(-1, -1, half.shape[-1])) for half in stored], dim=-1)
    latest = latest.unflatten(1, slots.shape[1:]) * known[..., None]  # [R, W, L, D]
    made = (latest * layer.conv.weight[:, 0].T).sum(2)
    if layer.conv.bias is not None:
        made = made + layer.conv.bias
    mixed: Tensor = layer.out_proj(after * made)
    return mixed
