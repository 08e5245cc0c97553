"""What the runners of heads on the target's last feature share."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FeatureTarget
from mmspec.drafters.head_sampler import HeadSampler
from mmspec.errors import ArgumentError
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree_rejection import Outcome


class LastFeatureRunner:
    """Follows the feature that each row's last token was sampled from. R is B, or 2 B with guidance.

    With guidance, heads run on the features of conditional and unconditional rows.

    Args:
        target: Provides the features, and the LM head that maps predicted features to logits.
        sampler: Makes the draft distributions of those logits.
    """

    ROWS = ("_feature", "_sampler")
    COUNTS = ("calls",)

    def __init__(self, target: FeatureTarget, sampler: TokenSampler) -> None:
        self.calls = 0
        self._target = target
        self._sampler = HeadSampler(sampler, target)
        self._feature: Tensor | None = None  # [R, D]

    def feature(self) -> Tensor:
        """The features, [R, D]; at first that of the prompt's last slot."""
        if self._feature is None:
            self._feature = self._target.features()[:, -1]
        return self._feature

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        """Takes the features of the last accepted entries from the target's call; called after verification."""
        if self._feature is None:
            self.feature()
            return
        features = self._target.features()
        last = verdict.last.on(features.device)
        row = torch.arange(len(features), device=features.device)
        self._feature = features[row, last.repeat(len(features) // len(last))]

    def before_join(self, other: LastFeatureRunner, state: BatchState, other_state: BatchState) -> None:
        self._feature, other._feature = self.feature(), other.feature()


def refuse_few(count: int, kind: str, context: DraftingContext, depth: int) -> None:
    """Checks that there are as many heads as drafts in a window.

    Raises:
        ArgumentError: If there are fewer.
    """
    recipe = context.recipe
    is_refreshed = recipe.knobs.get("refresh", "none") != "none"
    is_largest = not is_refreshed and (recipe.auto or recipe.auto_branch)  # it follows from what is chosen later
    if depth > count and not is_largest:
        take = f"window={count + 1}" if "window" in recipe.knobs else f"a branch of depth {count}"
        if is_refreshed:
            take = f"refreshed={count}"
        raise ArgumentError(
            f"recipe '{recipe}' drafts {depth} tokens ahead, but the drafter has {count} {kind} heads; take {take}"
        )
