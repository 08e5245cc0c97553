"""Improved precision and recall (Kynkaanniemi et al. 2019): shares of samples that lie in the support of the other set.

The support of a set is estimated by the balls around its members that reach to their k-th nearest neighbor. Precision
is the share of generated samples in the support of the reference, recall is the share of reference samples in the
support of the generated ones. One image repeated forever has precision 1: report both.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.features import Features, as_feature_pair, square_distances
from mmspec.metrics.metric import FeatureMetric, Groups, Rows
from mmspec.metrics.reference import Reference
from mmspec.metrics.shares import share_of

_ROWS = 1024  # rows of the distance matrix at a time


@dataclass(frozen=True)
class PrecisionRecall:
    """Which samples are covered by the other set.

    Attributes:
        generated: bool [N].
        reference: bool [M].
    """

    generated: NDArray[np.bool_]
    reference: NDArray[np.bool_]

    @property
    def precision(self) -> float:
        return float(self.generated.mean())

    @property
    def recall(self) -> float:
        return float(self.reference.mean())


def precision_recall(generated: Any, reference: Any, k: int = 3) -> PrecisionRecall:
    """Precision and recall of features [N, D] against [M, D].

    Raises:
        ArgumentError: If `as_features` raises it; each side needs k + 1 samples.
    """
    if k < 1:
        raise ArgumentError(f"k={k} is not allowed; it must be 1 or more")
    x, y = as_feature_pair(generated, reference, ("generated", "reference"), least=k + 1)
    return PrecisionRecall(_covered(x, y, _radii(y, k)), _covered(y, x, _radii(x, k)))


def _radii(points: Features, k: int) -> Features:
    """Squared distance of each point to its k-th nearest neighbor."""
    radii = []
    for first in range(0, len(points), _ROWS):
        distances = square_distances(points[first : first + _ROWS], points)
        rows = np.arange(len(distances))
        distances[rows, first + rows] = np.inf  # a copy of a point is a neighbor, the point itself is not
        radii.append(np.partition(distances, k - 1, axis=1)[:, k - 1])
    return np.concatenate(radii)


def _covered(points: Features, others: Features, radii: Features) -> NDArray[np.bool_]:
    """Which points lie in a ball around one of the others."""
    parts = [points[first : first + _ROWS] for first in range(0, len(points), _ROWS)]
    return np.concatenate([(square_distances(part, others) <= radii).any(1) for part in parts])


class _Coverage(FeatureMetric):
    """The mean of one side of `precision_recall`.

    Intervals are those of a share of that side's samples; the balls are those of all samples.
    """

    needs_reference = True
    higher_is_better = True
    is_share = True
    min_samples = 4
    min_samples_reason = "it needs the third nearest neighbor of each"

    @abstractmethod
    def side(self, covered: PrecisionRecall) -> NDArray[np.bool_]:
        """The samples whose coverage is averaged."""

    def measure(self, rows: Rows, reference: Reference, groups: Groups = None) -> Estimate:
        covered = self.side(precision_recall(np.stack(rows), self._features_of(reference)))
        return share_of(covered, groups if groups is None or len(groups) == len(covered) else None)


class Precision(_Coverage):
    """Precision over the features of an extractor, `precision@EXTRACTOR`."""

    def __init__(self, extractor: str) -> None:
        super().__init__(f"precision@{extractor}", extractor)

    def side(self, covered: PrecisionRecall) -> NDArray[np.bool_]:
        return covered.generated


class Recall(_Coverage):
    """Recall over the features of an extractor, `recall@EXTRACTOR`."""

    def __init__(self, extractor: str) -> None:
        super().__init__(f"recall@{extractor}", extractor)

    def side(self, covered: PrecisionRecall) -> NDArray[np.bool_]:
        return covered.reference
