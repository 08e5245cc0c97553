"""Medusa heads (Cai et al. 2024, arXiv 2401.10774) read for the laws of a draft: one law for each depth."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.drafters.reader import Outcome
from mmspec.heads.medusa import MedusaHeads
from mmspec.law import Law
from mmspec.rows import Rows
from mmspec.target import FeatureTarget, both_sides, split_sides
from mmspec.tree import Tree


class MedusaReader:
    """Reads the feature that the last token was drawn from. With guidance it does so on both sides.

    **Arguments:**

    - `heads`: the network.
    - `target`: whose features it starts from, and whose head makes logits of its guesses.
    - `law`: what those become.
    """

    def __init__(self, heads: MedusaHeads, target: FeatureTarget, law: Law) -> None:
        self.calls = 0
        self._heads = heads
        self._target = target
        self._law = law
        self._feature: Tensor | None = None  # [R, D]
        self._q = torch.empty(0)  # [B, heads, V]

    def observe(self, verdict: Outcome, rows: Rows) -> None:
        if self._feature is None:
            self._feature = self._target.features()[:, -1]
            return
        last = np.pad(verdict.path, ((0, 0), (1, 0)))[np.arange(len(verdict.path)), verdict.accepted]
        found = self._target.features()
        row = torch.arange(len(found), device=found.device)
        self._feature = found[row, torch.from_numpy(np.resize(last, len(found))).to(found.device)]

    def keep(self, rows: list[int]) -> None:
        if self._feature is not None:
            count = len(self._law.temperature)
            self._feature = self._feature[both_sides(rows, count, len(self._feature) > count, self._feature.device)]
        self._law.keep(torch.tensor(rows, device=self._target.device))

    def root(self, rows: Rows) -> Tensor:
        if self._feature is None:
            self._feature = self._target.features()[:, -1]
        self.calls += 1
        guesses = self._heads(self._feature.to(self._heads.device)).to(self._feature)
        logits = split_sides(self._target.head(guesses), len(self._feature) > len(rows.ids))
        self._q = self._law(logits, rows.positions(self._heads.count))
        return self._q[:, :1]

    def nodes(self, rows: Rows, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        depth = np.broadcast_to(tree.depth[:, first : first + tokens.shape[1]], tokens.shape)
        index = torch.from_numpy(depth.copy()).to(self._q.device)[..., None]
        return self._q.gather(1, index.expand(-1, -1, self._q.shape[-1]))
