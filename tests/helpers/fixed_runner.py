"""A draft runner without a model, and the trees of drafters that use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree, TreeDraft
from mmspec.sampling.tree_rejection import Outcome

VOCAB = 40


class FixedRunner:
    """A draft runner whose logits depend on the path to an entry.

    Args:
        device: Of the logits.
        top_k: Tokens that are not cut off.
    """

    calls = 0

    def __init__(self, device: torch.device, top_k: int = 20) -> None:
        self._sampler = TokenSampler([SamplingParams(0.8, top_k=top_k)] * 3, None, device)
        self._logits = torch.randn(8 * VOCAB, VOCAB, device=device) * 2
        self._paths = torch.empty(0)

    def root(self, state: BatchState) -> Probs:
        self._paths = state.last()
        return self._probs(self._paths, state.positions(1))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        width = tokens.shape[1]
        sees = tree.sees[:, first : first + width, : first + width].cpu()
        self._paths = torch.cat([self._paths[:, :first], tokens], dim=1)
        path = (sees.to(tokens.device) * (self._paths[:, None] + 1)).sum(-1)
        positions = state.length[:, None] + tree.depth[:, first : first + width]
        return self._probs(path, np.broadcast_to(positions, path.shape))

    def _probs(self, paths: Tensor, positions: np.ndarray) -> Probs:
        return self._sampler(Logits(self._logits[paths % len(self._logits)], None), Numbers(positions))

    def observe(self, verdict: Outcome, state: BatchState) -> None: ...


def trees_of_kernels_and_host(
    drafter: Callable[[], Any], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> tuple[BatchState, TreeDraft, TreeDraft]:
    """The state that trees are drafted for, and the trees of a drafter with kernels and without."""
    found: list[TreeDraft] = []
    for kernels in ("triton", "torch"):
        monkeypatch.setenv("MMSPEC_KERNELS", kernels)
        torch.manual_seed(3)
        state = BatchState([1, 2, 3], Layout(30), 9, device)
        state.commit(torch.randint(VOCAB, (3, 8)).to(device), np.array([7, 3, 5]))
        found.append(drafter().propose(state, np.zeros((3, 1), dtype=np.int64)))
    return state, found[0], found[1]
