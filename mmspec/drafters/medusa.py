"""The draft runner of Medusa heads (Cai et al. 2024, arXiv 2401.10774): one distribution for each depth."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import FeatureTarget
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.heads.medusa import MedusaHeads
from mmspec.sampling.logits import cfg_rows, split_cfg
from mmspec.sampling.rows import put_rows
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree
from mmspec.sampling.tree_rejection import Outcome


class MedusaRunner:
    """Runs Medusa heads on the target's feature that the last token was sampled from.

    With guidance, the heads run on the features of conditional and unconditional rows.

    Args:
        heads: The heads.
        target: Provides the features, and the LM head that maps predicted features to logits.
        sampler: Makes the draft distributions of those logits.
    """

    def __init__(self, heads: MedusaHeads, target: FeatureTarget, sampler: TokenSampler) -> None:
        self.calls = 0
        self._heads = heads
        self._target = target
        self._sampler = HeadSampler(sampler, target)
        self._feature: Tensor | None = None  # [R, D]
        self._logits = torch.empty(0)  # [R, heads, V]

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        if self._feature is None:
            self._feature = self._target.features()[:, -1]
            return
        last = np.pad(verdict.path, ((0, 0), (1, 0)))[np.arange(len(verdict.path)), verdict.accepted]
        features = self._target.features()
        row = torch.arange(len(features), device=features.device)
        self._feature = features[row, torch.from_numpy(np.resize(last, len(features))).to(features.device)]

    def select_rows(self, row_ids: list[int]) -> None:
        if self._feature is not None:
            count = self._sampler.rows
            self._feature = self._feature[cfg_rows(row_ids, count, len(self._feature) > count, self._feature.device)]
        self._sampler.select_rows(row_ids)

    def join(self, other: MedusaRunner, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """See `mmspec.decoding.loop.JoinableDrafter`."""
        for runner in (self, other):
            if runner._feature is None:
                runner._feature = runner._target.features()[:, -1]
        assert self._feature is not None and other._feature is not None
        factor = len(self._feature) // self._sampler.rows
        self._feature = put_rows(self._feature, other._feature, row_ids, cfg_factor=factor)
        self._sampler.join(other._sampler, row_ids)
        self.calls += other.calls

    def root(self, state: BatchState) -> Tensor:
        if self._feature is None:
            self._feature = self._target.features()[:, -1]
        self.calls += 1
        predicted = self._heads(self._feature.to(self._heads.device)).to(self._feature)
        self._logits = self._target.head(predicted)
        return self._sampler.root(state, split_cfg(self._logits[:, :1], len(self._feature) > len(state.ids)))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        depth = np.broadcast_to(tree.depth[:, first : first + tokens.shape[1]], tokens.shape)
        factor = len(self._logits) // len(tokens)
        index = torch.from_numpy(np.concatenate([depth] * factor)).to(self._logits.device)[..., None]
        logits = self._logits.gather(1, index.expand(-1, -1, self._logits.shape[-1]))
        return self._sampler.nodes(state, tokens, tree, first, split_cfg(logits, factor > 1))
