"""Cross-attention to encoded text, with its keys and values cached."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache


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

    def select_rows(self, row_ids: Tensor) -> None:
        """Keeps these rows (int64 [rows']), in this order, and drops all others."""
        self.states, self.bias = self.states[row_ids], self.bias[row_ids]
        if self._cache is not None:
            for layer in self._cache.cross_attention_cache.layers:
                layer.keys, layer.values = (
                    layer.keys[row_ids.to(layer.keys.device)],
                    layer.values[row_ids.to(layer.keys.device)],
                )
