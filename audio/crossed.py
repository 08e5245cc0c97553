"""Decoders that attend to encoded text at every step."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache


@dataclass(frozen=True)
class Hidden:
    """What a decoder gives, under the name it has in transformers."""

    last_hidden_state: Tensor


class Crossed:
    """Encoded text: its keys and values are computed once and kept by layer.

    **Arguments:**

    - `states`: [R, S, D].
    - `mask`: [R, S], 0 or False where nothing is to be seen.
    """

    def __init__(self, states: Tensor, mask: Tensor) -> None:
        self.states = states
        self.bias = torch.zeros(mask.shape, dtype=states.dtype, device=states.device)
        self.bias = self.bias.masked_fill_(~mask.bool(), torch.finfo(states.dtype).min)[:, None, None]
        self._cache: EncoderDecoderCache | None = None

    def beside(self, own: Any, rows: int) -> EncoderDecoderCache:
        """The cache of a decoder whose self-attention keeps its own, for the first `rows` rows."""
        if self._cache is None:
            self._cache = EncoderDecoderCache(own, DynamicCache())
        if rows == len(self.states):
            return self._cache
        some = DynamicCache()
        for layer in self._cache.cross_attention_cache.layers:
            cut = copy(layer)
            cut.keys, cut.values = layer.keys[:rows], layer.values[:rows]
            some.layers.append(cut)
        return EncoderDecoderCache(own, some)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        self.states, self.bias = self.states[rows], self.bias[rows]
        if self._cache is not None:
            for layer in self._cache.cross_attention_cache.layers:
                layer.keys, layer.values = (
                    layer.keys[rows.to(layer.keys.device)],
                    layer.values[rows.to(layer.keys.device)],
                )
