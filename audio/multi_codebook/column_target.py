"""A decoder of transformers whose tokens are columns, wrapped as a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.multi_codebook.cross_attention import CrossAttention
from mmspec.decoding.target import EarlyExit
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.sampling.logits import Logits, cfg_rows


class ColumnTarget:
    """A decoder-only model whose tokens are columns; see `mmspec.hf.causal_target.CausalTarget`.

    Args:
        decoder: As `Backbone` has it.
        embed: Columns int64 [R, W, K] to [R, W, D].
        heads: Hidden states to logits [R, W, K, V].
        codebooks: K.
        vocab_size: V.
        prompt: One row per row; both sides begin with the same one, unless `uncond` is another.
        guided: Also read an unconditional side.
        length: Columns to be made.
        slack: How many a window may reach past the end.
        cross_attention: What the decoder attends to besides, with both sides' rows where guided.
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
        cross_attention: CrossAttention | None = None,
        uncond: Prompt | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.device = prompt.embeds.device
        self._cross_attention = cross_attention
        self._guided = guided
        self._rows = len(prompt.mask)
        # The target below knows tokens of one number: a column goes through it as K of them, to the embedding.
        flat = Backbone(decoder, lambda ids: embed(ids.unflatten(1, (-1, codebooks))), heads, vocab_size, self.device)
        self._target = CausalTarget(flat, prompt, (uncond or prompt) if guided else None, length, slack)
        self.layers = self._target.layers

    def prefill(self) -> Logits:
        return self._target.prefill()

    def forward(self, tokens: Tensor, at: NDArray[np.int64], part: EarlyExit | None = None) -> Logits:
        return self._target.forward(tokens.flatten(1), at, part)

    def select_rows(self, row_ids: list[int]) -> None:
        if self._cross_attention is not None:
            self._cross_attention.select_rows(cfg_rows(row_ids, self._rows, self._guided, self.device))
        self._rows = len(row_ids)
        self._target.select_rows(row_ids)
