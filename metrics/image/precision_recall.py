"""Improved precision and recall (Kynkaanniemi et al. 2019): how many samples lie where those of the other set do.

A set covers the balls around its members that reach to their k-th nearest neighbour. Precision is the share of
generated samples that the reference covers, recall that of reference samples that the generated ones cover. One image
repeated for ever has precision 1: report both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features, read_pair, square_distances

_ROWS = 1024  # of distances at a time


@dataclass(frozen=True)
class PrecisionRecall:
    """Which samples are covered by the other set: `generated` bool [N] and `reference` bool [M]."""

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
        ArgumentError: As `read_features`; k + 1 samples are needed on each side.
    """
    if k < 1:
        raise ArgumentError(f"k={k} is not allowed; it must be 1 or more")
    x, y = read_pair(generated, reference, ("generated", "reference"), least=k + 1)
    return PrecisionRecall(_covered(x, y, _radii(y, k)), _covered(y, x, _radii(x, k)))


def _radii(points: Features, k: int) -> Features:
    """Squared distance of each point to its k-th nearest other one."""
    radii = []
    for first in range(0, len(points), _ROWS):
        distances = square_distances(points[first : first + _ROWS], points)
        rows = np.arange(len(distances))
        distances[rows, first + rows] = np.inf  # a copy of a point is a neighbour, the point itself is not
        radii.append(np.partition(distances, k - 1, axis=1)[:, k - 1])
    return np.concatenate(radii)


def _covered(points: Features, others: Features, radii: Features) -> NDArray[np.bool_]:
    parts = [points[first : first + _ROWS] for first in range(0, len(points), _ROWS)]
    return np.concatenate([(square_distances(part, others) <= radii).any(1) for part in parts])
