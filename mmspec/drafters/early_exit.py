"""The target's own first layers as drafter, on the target's own cache: self-speculation.

LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710) and Draft & Verify (Zhang et al. 2023, arXiv 2309.08168): the first
layers, then the last norm and the head. The prompt is read once, and no second cache is kept: the keys and values that
the first layers write for drafts are what the target itself writes there when it verifies them. A draft is tested with
the distribution it was drawn from, so it is exact for any model; it is good where the model was trained to leave early.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.target import EarlyExit, SupportsEarlyExit, SupportsTreeEarlyExit
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.tree import Tree


class EarlyExitTarget:
    """A part of a target, as a model of its own that has read the prompts already.

    Args:
        target: Which is decoding.
        part: What of it drafts.

    Raises:
        ArgumentError: When the target cannot be asked for its first layers, or has no more of them.
    """

    def __init__(self, target: object, part: EarlyExit) -> None:
        if not isinstance(target, SupportsEarlyExit):
            raise ArgumentError(
                f"the first layers cannot draft here: {type(target).__name__} is read whole; use a draft model"
            )
        if part.layers >= target.layers:
            raise ArgumentError(f"layers={part.layers} is not allowed; this model has {target.layers}, so take fewer")
        self.vocab_size = target.vocab_size
        self.device = target.device
        self._target = target
        self._part = part

    def prefill(self) -> Logits:
        """Nothing is left to read, and nothing is said: logits of no position, [0, 0, V]."""
        return Logits(torch.empty(0, 0, self.vocab_size, device=self.device), None)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        return self._target.forward(tokens, at, self._part)

    def forward_tree(self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0) -> Logits:
        assert isinstance(self._target, SupportsTreeEarlyExit), "a target of windows has no recipes with trees"
        return self._target.forward_tree(tokens, at, tree, first, self._part)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        """The target settles what they share."""

    def select_rows(self, row_ids: list[int]) -> None:
        """The target keeps its rows itself, before its drafter is told to."""
