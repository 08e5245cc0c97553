"""The target's feature that the last token of each row was sampled from, followed from window to window."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.target import FeatureTarget
from mmspec.sampling.logits import cfg_rows
from mmspec.sampling.rows import put_rows
from mmspec.sampling.tree_rejection import Outcome


class LastFeature:
    """Follows the feature of each row's last token. R is B, or 2 B with guidance.

    Args:
        target: Provides the features.
    """

    def __init__(self, target: FeatureTarget) -> None:
        self._target = target
        self._feature: Tensor | None = None  # [R, D]

    def get(self) -> Tensor:
        """The features, [R, D]; at first that of the prompt's last slot."""
        if self._feature is None:
            self._feature = self._target.features()[:, -1]
        return self._feature

    def observe(self, verdict: Outcome) -> None:
        """Takes the features of the last accepted entries from the target's call; called after verification."""
        if self._feature is None:
            self.get()
            return
        last = np.pad(verdict.path, ((0, 0), (1, 0)))[np.arange(len(verdict.path)), verdict.accepted]
        features = self._target.features()
        row = torch.arange(len(features), device=features.device)
        self._feature = features[row, torch.from_numpy(np.resize(last, len(features))).to(features.device)]

    def select_rows(self, row_ids: list[int], rows: int) -> None:
        """Keeps these of `rows` rows, in this order, and drops all others."""
        if self._feature is not None:
            guided = len(self._feature) > rows
            self._feature = self._feature[cfg_rows(row_ids, rows, guided, self._feature.device)]

    def join(self, other: LastFeature, row_ids: list[int], rows: int) -> None:
        """Takes in the rows of another one; this one has `rows` rows."""
        own = self.get()
        self._feature = put_rows(own, other.get(), row_ids, cfg_factor=len(own) // rows)
