"""A decoder of transformers whose tokens are columns, wrapped as a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.crossed import Crossed
from mmspec.drafters.first_layers import Part
from mmspec.hf.target import Backbone, CausalTarget, Prompt
from mmspec.law import Logits
from mmspec.target import both_sides


class ColumnTarget:
    """A decoder-only model whose tokens are columns; see `mmspec.hf.target.CausalTarget`.

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
        self.layers = self._target.layers

    def prefill(self) -> Logits:
        return self._target.prefill()

    def forward(self, tokens: Tensor, at: NDArray[np.int64], part: Part | None = None) -> Logits:
        return self._target.forward(tokens.flatten(1), at, part)

    def keep(self, rows: list[int]) -> None:
        if self._crossed is not None:
            self._crossed.keep(both_sides(rows, self._rows, self._guided, self.device))
        self._rows = len(rows)
        self._target.keep(rows)
