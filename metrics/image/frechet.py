"""The Frechet distance between Gaussians fitted to features; with Inception's features it is FID (Heusel et al. 2017).

d^2 = |m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1 S2)^(1/2). The last trace is the sum of the singular values of A1' A2 for
any A with A A' = S, which needs no square root of a matrix: nothing complex appears, and covariances without full
rank, such as those of fewer samples than features, are no special case.

It is biased upwards, the more the fewer samples there are: compare only values of equal N, and report N.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.metrics.estimate import Estimate
from mmspec.metrics.features import Features, check_same_width
from mmspec.metrics.gaussian import gaussian_root
from mmspec.metrics.metric import DistanceMetric, Groups, Rows, resample_halves
from mmspec.metrics.reference import Reference


def frechet_distance(a: Any, b: Any, names: tuple[str, str] = ("generated", "reference")) -> float:
    """The squared Frechet distance, which is what FID reports.

    Args:
        a: Features [N, D], a `Gaussian`, or the `gaussian_root` of one.
        b: Likewise, of equal D.
        names: What the caller calls them, for messages.

    Raises:
        ArgumentError: If `as_features` raises it, or if the numbers of features differ.
    """
    x, y = gaussian_root(a, names[0]), gaussian_root(b, names[1])
    check_same_width(x.root, y.root, names)
    overlap = np.linalg.svd(x.root @ y.root.T, compute_uv=False).sum()
    shift = x.mean - y.mean
    return float(shift @ shift + (x.root**2).sum() + (y.root**2).sum() - 2 * overlap)


class FrechetDistance(DistanceMetric):
    """The Frechet distance over the features of an extractor, `fd@EXTRACTOR`; a reference of statistics suffices.

    Args:
        extractor: The extractor's name.
        name: None is `fd@` and the extractor's name.
    """

    def __init__(self, extractor: str, name: str | None = None) -> None:
        super().__init__(name or f"fd@{extractor}", extractor)

    def distance(self, generated: Features, reference: Any) -> float:
        return frechet_distance(generated, reference)

    def measure(self, rows: Rows, reference: Reference, groups: Groups = None) -> Estimate:
        features, root = np.stack(rows), gaussian_root(reference.gaussian, "reference")
        return resample_halves(lambda index: self.distance(features[index], root), len(features))


FID = FrechetDistance("inception", "fid")
