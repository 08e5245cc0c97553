"""Decoders that attend to encoded text at every step, and targets of columns around any decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from mmspec.law import Logits
from mmspec.target import both_sides
from mmspec.vision.hf.target import Backbone, CausalTarget, Prompt


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

    def beside(self, own: Any) -> EncoderDecoderCache:
        """The cache of a decoder whose self-attention keeps its own."""
        if self._cache is None:
            self._cache = EncoderDecoderCache(own, DynamicCache())
        return self._cache

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        self.states, self.bias = self.states[rows], self.bias[rows]
        if self._cache is not None:
            for layer in self._cache.cross_attention_cache.layers:
                layer.keys, layer.values = (
                    layer.keys[rows.to(layer.keys.device)],
                    layer.values[rows.to(layer.keys.device)],
                )


class ColumnTarget:
    """A decoder-only model whose tokens are columns; see `mmspec.vision.hf.target.CausalTarget`.

    **Arguments:**

    - `decoder`: as `Backbone` has it; `embed`: columns int64 [R, W, K] to [R, W, D]; `heads`: hidden states to logits
      [R, W, K, V].
    - `codebooks`, `vocab_size`: K and V.
    - `prompt`: one row per row; both sides begin with the same one, unless `uncond` is another.
    - `guided`: also read an unconditional side.
    - `length`: columns to be made; `slack`: how many a window may reach past the end.
    - `crossed`: what the decoder attends to besides, with both sides' rows where guided.
    """

    def __init__(
        self,
        decoder: Callable[..., Any],
        embed: Callable[[Tensor], Tensor],
        heads: Callable[[Tensor], Tensor],
        codebooks: int,
        vocab_size: int,
        prompt: Prompt,
        guided: bool,
        length: int,
        slack: int,
        crossed: Crossed | None = None,
        uncond: Prompt | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.device = prompt.embeds.device
        self._crossed = crossed
        self._guided = guided
        self._rows = len(prompt.mask)
        # The target below knows tokens of one number: a column goes through it as K of them, to the embedding.
        flat = Backbone(decoder, lambda ids: embed(ids.unflatten(1, (-1, codebooks))), heads, vocab_size, self.device)
        self._target = CausalTarget(flat, prompt, (uncond or prompt) if guided else None, length, slack)

    def prefill(self) -> Logits:
        return self._target.prefill()

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        return self._target.forward(tokens.flatten(1), at)

    def keep(self, rows: list[int]) -> None:
        if self._crossed is not None:
            self._crossed.keep(both_sides(rows, self._rows, self._guided, self.device))
        self._rows = len(rows)
        self._target.keep(rows)
