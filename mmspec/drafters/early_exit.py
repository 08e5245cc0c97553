"""Early exit: the target's first layers as the draft model, on the target's own KV cache (self-speculation).

LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710) and Draft & Verify (Zhang et al. 2023, arXiv 2309.08168): the first
layers, then the final norm and the LM head. The prompt is read once and there is no second cache: the keys and values
that the first layers write for drafts are the same that the target writes when it verifies them. A draft is tested with
the distribution that it was sampled from, so that decoding is exact for any model. Drafts are good if the model was
trained for early exits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.target import (
    EarlyExit,
    SupportsEarlyExit,
    SupportsTreeEarlyExit,
    reads_ahead,
    reads_short_cache,
    reuses_updates,
    skips_layers,
)
from mmspec.errors import ArgumentError
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.tree import Tree


class EarlyExitTarget:
    """The first layers of a target that has read the prompts, wrapped as a target.

    Args:
        target: The target that is decoding.
        early_exit: The number of layers, and whether the unconditional rows run as well.

    Raises:
        ArgumentError: If the target does not support early exits, short caches or skipped layers, or has fewer than
            `early_exit.layers` layers, or if the early exit is the whole target.
    """

    ROWS = ()  # the rows are those of the target
    SAME = ()

    def __init__(self, target: object, early_exit: EarlyExit) -> None:
        if not isinstance(target, SupportsEarlyExit):
            raise ArgumentError(
                f"the first layers cannot draft here: {type(target).__name__} has no early exit; use a draft model"
            )
        if early_exit.recent and not reads_short_cache(target):
            raise ArgumentError(f"a short cache cannot draft here: {type(target).__name__} reads its whole KV cache")
        if early_exit.skip and not skips_layers(target):
            raise ArgumentError(f"layers cannot be skipped here: {type(target).__name__} runs the first ones only")
        if early_exit.reuse and not reuses_updates(target):
            raise ArgumentError(
                f"refresh=outer is not possible here: {type(target).__name__} cannot reuse what its layers have added"
            )
        most = target.layers if early_exit.recent or early_exit.skip else target.layers - 1
        if early_exit.layers > most:
            raise ArgumentError(
                f"layers={early_exit.layers} is not allowed; this model has {target.layers}, so take fewer"
            )
        self.vocab_size = target.vocab_size
        self.device = target.device
        self._target = target
        self._early_exit = early_exit

    def prefill(self) -> Logits:
        """Does nothing, since the target has read the prompts; returns empty logits, [0, 0, V]."""
        return Logits(torch.empty(0, 0, self.vocab_size, device=self.device), None)

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        return self._target.forward(tokens, at, self._early_exit)

    @property
    def reads_ahead(self) -> bool:
        return not self._early_exit.recent and reads_ahead(self._target)

    def forward_ahead(self, tokens: Tensor, at: Numbers) -> Logits | None:
        target: Any = self._target
        found: Logits | None = target.forward_ahead(tokens, at, self._early_exit)
        return found

    def forward_tree(self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0) -> Logits:
        assert isinstance(self._target, SupportsTreeEarlyExit), "recipes with a tree need a target that reads trees"
        return self._target.forward_tree(tokens, at, tree, first, self._early_exit)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        """Does nothing: the target settles the cache that both share."""
