"""The draft runner of Medusa heads (Cai et al. 2024, arXiv 2401.10774): one distribution for each depth."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import FeatureTarget
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.drafters.last_feature import LastFeature
from mmspec.heads.medusa import MedusaHeads
from mmspec.sampling.logits import split_cfg
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
        self._feature = LastFeature(target)
        self._logits = torch.empty(0)  # [R, heads, V]

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        self._feature.observe(verdict)

    def select_rows(self, row_ids: list[int]) -> None:
        self._feature.select_rows(row_ids, self._sampler.rows)
        self._sampler.select_rows(row_ids)

    def join(self, other: MedusaRunner, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """See `mmspec.decoding.loop.JoinableDrafter`."""
        self._feature.join(other._feature, row_ids, self._sampler.rows)
        self._sampler.join(other._sampler, row_ids)
        self.calls += other.calls

    def root(self, state: BatchState) -> Tensor:
        feature = self._feature.get()
        self.calls += 1
        predicted = self._heads(feature.to(self._heads.device)).to(feature)
        self._logits = self._target.head(predicted)
        return self._sampler.root(state, split_cfg(self._logits[:, :1], len(feature) > len(state.ids)))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Tensor:
        depth = np.broadcast_to(tree.depth[:, first : first + tokens.shape[1]], tokens.shape)
        factor = len(self._logits) // len(tokens)
        index = torch.from_numpy(np.concatenate([depth] * factor)).to(self._logits.device)[..., None]
        logits = self._logits.gather(1, index.expand(-1, -1, self._logits.shape[-1]))
        return self._sampler.nodes(state, tokens, tree, first, split_cfg(logits, factor > 1))
