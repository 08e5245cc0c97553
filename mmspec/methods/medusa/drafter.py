"""The draft runner of Medusa heads (Cai et al. 2024, arXiv 2401.10774): one distribution for each depth."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FeatureTarget
from mmspec.drafters.last_feature import LastFeatureRunner, refuse_few
from mmspec.methods.medusa.head import MedusaHeads
from mmspec.sampling.logits import split_cfg
from mmspec.sampling.numbers import on_device
from mmspec.sampling.probs import Probs
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import Tree


class MedusaRunner(LastFeatureRunner):
    """Runs Medusa heads on the target's feature that the last token was sampled from.

    Args:
        target: Provides the features, and the LM head that maps predicted features to logits.
        sampler: Makes the draft distributions of those logits.
    """

    def __init__(self, heads: MedusaHeads, target: FeatureTarget, sampler: TokenSampler) -> None:
        super().__init__(target, sampler)
        self._heads = heads
        self._logits = torch.empty(0)  # [R, heads, V]

    def root(self, state: BatchState) -> Probs:
        feature = self.feature()
        self.calls += 1
        predicted = self._heads(feature.to(self._heads.device)).to(feature)
        self._logits = self._target.head(predicted)
        return self._sampler.root(state, split_cfg(self._logits[:, :1], len(feature) > len(state.ids)))

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        # Past the reused drafts of `start=medusa,window=auto` there may be more slots than heads: the last one goes on.
        depth = np.minimum(tree.depth[:, first : first + tokens.shape[1]], self._heads.count - 1)
        factor, vocab_size = len(self._logits) // len(tokens), self._logits.shape[-1]
        if (depth == (one := int(depth[0, 0]))).all():  # a level of a tree
            logits = self._logits[:, one : one + 1].expand(-1, tokens.shape[1], -1)
        else:
            index = on_device(np.concatenate([np.broadcast_to(depth, tokens.shape)] * factor), self._logits.device)
            logits = self._logits.gather(1, index[..., None].expand(-1, -1, vocab_size))
        return self._sampler.nodes(state, tokens, tree, first, split_cfg(logits, factor > 1))


def build_runner(heads: MedusaHeads, context: DraftingContext, sampler: TokenSampler, depth: int) -> MedusaRunner:
    """The runner of the network for a recipe.

    Raises:
        ArgumentError: If there are too few heads.
    """
    refuse_few(heads.count, "Medusa", context, depth)
    assert isinstance(context.target, FeatureTarget)
    return MedusaRunner(heads, context.target, sampler)
