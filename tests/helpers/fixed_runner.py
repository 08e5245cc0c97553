"""A draft runner without a model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome

VOCAB = 40


class FixedRunner:
    """A draft runner whose logits depend on the path to an entry."""

    calls = 0

    def __init__(self, device: torch.device) -> None:
        self._sampler = TokenSampler([SamplingParams(0.8, top_k=20)] * 3, None, device)
        self._logits = torch.randn(8 * VOCAB, VOCAB, device=device) * 2
        self._paths = torch.empty(0)

    def root(self, state: BatchState) -> Tensor:
        self._paths = state.last()
        return self._probs(self._paths, state.positions(1))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        width = tokens.shape[1]
        sees = tree.sees[:, first : first + width, : first + width].cpu()
        self._paths = torch.cat([self._paths[:, :first], tokens], dim=1)
        path = (sees.to(tokens.device) * (self._paths[:, None] + 1)).sum(-1)
        positions = state.length[:, None] + tree.depth[:, first : first + width]
        return self._probs(path, np.broadcast_to(positions, path.shape))

    def _probs(self, paths: Tensor, positions: np.ndarray) -> Tensor:
        return self._sampler(Logits(self._logits[paths % len(self._logits)], None), positions)

    def observe(self, verdict: Outcome, state: BatchState) -> None: ...

    def select_rows(self, row_ids: list[int]) -> None: ...

    def join(self, other: object, row_ids: list[int], state: BatchState, other_state: BatchState) -> None: ...
