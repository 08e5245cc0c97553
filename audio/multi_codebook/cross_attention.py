"""Cross-attention to encoded text, with its keys and values cached."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from mmspec.sampling.rows import put_rows


class CrossAttention:
    """Encoded text, whose keys and values are computed once per layer and cached.

    Args:
        states: The encoder's hidden states [R, S, D].
        mask: [R, S], 0 or False on padding.

    Attributes:
        states: As above.
        bias: [R, 1, 1, S], added to attention scores: 0, or the lowest number of the dtype on padding.
    """

    def __init__(self, states: Tensor, mask: Tensor) -> None:
        self.states = states
        self.bias = torch.zeros(mask.shape, dtype=states.dtype, device=states.device)
        self.bias = self.bias.masked_fill_(~mask.bool(), torch.finfo(states.dtype).min)[:, None, None]
        self._cache: EncoderDecoderCache | None = None

    def with_self_attention(self, own: Any, batch_size: int) -> EncoderDecoderCache:
        """The KV cache of an encoder-decoder for the first `batch_size` rows; `own` is that of its self-attention."""
        if self._cache is None:
            self._cache = EncoderDecoderCache(own, DynamicCache())
        if batch_size == len(self.states):
            return self._cache
        some = DynamicCache()
        for layer in self._cache.cross_attention_cache.layers:
            cut = copy(layer)
            cut.keys, cut.values = layer.keys[:batch_size], layer.values[:batch_size]
            some.layers.append(cut)
        return EncoderDecoderCache(own, some)

    def join(self, other: CrossAttention, row_ids: list[int], cfg_factor: int) -> None:
        """Takes in the rows of `other`, whose keys and values have been computed; row i becomes row `row_ids[i]`."""
        self.states = put_rows(self.states, other.states, row_ids, cfg_factor=cfg_factor)
        hidden = torch.finfo(self.bias.dtype).min
        self.bias = put_rows(self.bias, other.bias, row_ids, cfg_factor=cfg_factor, fill=hidden)
        assert self._cache is not None and other._cache is not None
        theirs = other._cache.cross_attention_cache.layers
        for layer, new in zip(self._cache.cross_attention_cache.layers, theirs, strict=True):
            layer.keys = put_rows(layer.keys, new.keys, row_ids, cfg_factor=cfg_factor)
            layer.values = put_rows(layer.values, new.values, row_ids, cfg_factor=cfg_factor)

    def select_rows(self, row_ids: Tensor) -> None:
        """Keeps these rows (int64 [rows']), in this order, and drops all others."""
        self.states, self.bias = self.states[row_ids], self.bias[row_ids]
        if self._cache is not None:
            for layer in self._cache.cross_attention_cache.layers:
                layer.keys, layer.values = (
                    layer.keys[row_ids.to(layer.keys.device)],
                    layer.values[row_ids.to(layer.keys.device)],
                )
