"""The draft runner of Hydra heads (Ankner et al. 2024, arXiv 2402.05109), which read the drafts before them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FeatureTarget
from mmspec.drafters.last_feature import LastFeatureRunner, refuse_few
from mmspec.methods.hydra.head import HydraHeads
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree


class HydraRunner(LastFeatureRunner):
    """Runs Hydra heads on the feature that the last token was sampled from, and on the tokens from there on.

    Args:
        target: Provides the features, and the LM head that maps predicted features to logits.
        sampler: Makes the draft distributions of those logits.
    """

    def __init__(self, heads: HydraHeads, target: FeatureTarget, sampler: TokenSampler) -> None:
        super().__init__(target, sampler)
        self._heads = heads
        self._paths = list[Tensor]()  # of each entry of the tree, the tokens from the root to it, int64 [B, depth + 1]

    def root(self, state: BatchState) -> Probs:
        self._paths = [state.last()]
        return self._sampler.root(state, self._logits([self._predict(self._paths)]))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        assert len(tree.parents) == 1, "the trees of all rows have one shape, level by level"
        for i, parent in enumerate(tree.parents[0, first - 1 : first - 1 + tokens.shape[1]]):
            self._paths.append(torch.cat([self._paths[parent], tokens[:, i : i + 1]], dim=1))
        # Entries of one depth are read by the same head, in one call.
        paths, depth = self._paths[first:], tree.depth[0, first : len(self._paths)]
        levels = [self._predict([paths[i] for i in np.flatnonzero(depth == d)]) for d in np.unique(depth)]
        return self._sampler.nodes(state, tokens, tree, first, self._logits(levels))

    def _predict(self, paths: list[Tensor]) -> Tensor:
        """The features [R, n, D] that n entries of one depth predict, given their paths."""
        self.calls += 1
        feature, tokens = self.feature(), paths[0][:, None] if len(paths) == 1 else torch.stack(paths, dim=1)
        features = feature[:, None].expand(-1, len(paths), -1).to(self._heads.device)
        tokens = tokens.repeat(len(feature) // len(tokens), 1, 1).to(self._heads.device)
        predicted: Tensor = self._heads(features, tokens)
        return predicted.to(feature)

    def _logits(self, levels: list[Tensor]) -> Logits:
        """The logits [B, W, V] of predicted features [R, n, D], entry after entry."""
        every = levels[0] if len(levels) == 1 else torch.cat(levels, dim=1)
        return split_cfg(self._target.head(every), len(every) > self._sampler.rows)


def build_runner(heads: HydraHeads, context: DraftingContext, sampler: TokenSampler, depth: int) -> HydraRunner:
    """The runner of the network for a recipe.

    Raises:
        ArgumentError: If there are too few heads.
    """
    refuse_few(heads.count, "Hydra", context, depth)
    assert isinstance(context.target, FeatureTarget)
    return HydraRunner(heads, context.target, sampler)
