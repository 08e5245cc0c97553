"""Kernel Inception distance (Binkowski et al. 2018): unbiased squared MMD under the kernel (x.y / D + 1)^3.

Unlike the Frechet distance it does not grow when samples are few; a value below 0 is possible and means that no
difference is detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.bootstrap import Index
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.features import Features, as_features, check_same_width
from mmspec.metrics.metric import DistanceMetric, Groups, Rows, resample_halves
from mmspec.metrics.reference import Reference

NAMES = ("generated", "reference")
SUBSET_SIZE = 1000
_DEGREE = 3


@dataclass(frozen=True)
class KidResult:
    """KID over subsets.

    Attributes:
        value: The mean over the subsets.
        spread: Their standard deviation, 0 for one subset. It measures how much one subset varies, not the error of the
            value: for that see `mmspec.metrics.bootstrap`.
        subsets: Number of subsets.
        subset_size: Samples per subset.
    """

    value: float
    spread: float
    subsets: int
    subset_size: int


def kid(
    generated: Any,
    reference: Any,
    subsets: int = 100,
    subset_size: int = SUBSET_SIZE,
    seed: int = 0,
    degree: int = _DEGREE,
) -> KidResult:
    """KID of features [N, D] against [M, D].

    Subsets are sampled without replacement, by a generator seeded here. If both sides fit into one subset, that subset
    is all samples, and the value is the estimate from all of them.

    Raises:
        ArgumentError: If `as_features` raises it (each side needs two samples), or if a setting is out of range.
    """
    x, y = as_features(generated, NAMES[0], least=2), as_features(reference, NAMES[1], least=2)
    check_same_width(x, y, NAMES)
    for name, value, low in (("subsets", subsets, 1), ("subset_size", subset_size, 2), ("degree", degree, 1)):
        if value < low:
            raise ArgumentError(f"{name}={value} is not allowed; it must be {low} or more")
    if max(len(x), len(y)) <= subset_size:
        return KidResult(polynomial_mmd(x, y, degree), 0.0, 1, max(len(x), len(y)))
    rng = np.random.default_rng(seed)
    size = min(subset_size, len(x), len(y))
    values = [
        polynomial_mmd(x[rng.choice(len(x), size, False)], y[rng.choice(len(y), size, False)], degree)
        for _ in range(subsets)
    ]
    return KidResult(float(np.mean(values)), float(np.std(values)), subsets, size)


def polynomial_mmd(x: Features, y: Features, degree: int = _DEGREE) -> float:
    """The unbiased estimate of squared MMD from all pairs of x [N, D] and y [M, D]."""
    within = 0.0
    for z in (x, y):
        within += _mean_of_pairs(_kernel(z, z, degree))
    return float(within - 2 * _kernel(x, y, degree).mean())


def _mean_of_pairs(kernel: Features) -> float:
    """The mean of a kernel [N, N] over pairs of different samples."""
    return float((kernel.sum() - np.trace(kernel)) / (len(kernel) * (len(kernel) - 1)))


def _kernel(x: Features, y: Features, degree: int) -> Features:
    return np.asarray((x @ y.T / x.shape[1] + 1) ** degree)


class KernelDistance(DistanceMetric):
    """KID's kernel distance over the features of an extractor, `kd@EXTRACTOR`, by 10 subsets where one is not enough.

    Args:
        extractor: The extractor's name.
        name: None is `kd@` and the extractor's name.
    """

    def __init__(self, extractor: str, name: str | None = None) -> None:
        super().__init__(name or f"kd@{extractor}", extractor)

    def distance(self, generated: Features, reference: Features) -> float:
        return kid(generated, reference, subsets=10).value

    def measure(self, rows: Rows, reference: Reference, groups: Groups = None) -> Estimate:
        features, others = np.stack(rows), self._features_of(reference)
        if max(len(features), len(others)) > SUBSET_SIZE:
            return super().measure(rows, reference, groups)
        check_same_width(features, others, NAMES)
        pairs = PairKernels(features, others)
        return resample_halves(pairs.mmd, len(features))


class PairKernels:
    """The kernels of all pairs, from which the squared MMD of any part of the samples takes sums only.

    Args:
        generated: float64 [N, D].
        reference: float64 [M, D].
    """

    def __init__(self, generated: Features, reference: Features) -> None:
        self._within = _kernel(generated, generated, _DEGREE)
        np.fill_diagonal(self._within, 0.0)
        self._across = _kernel(generated, reference, _DEGREE).mean(1)
        self._reference = _mean_of_pairs(_kernel(reference, reference, _DEGREE))

    def mmd(self, index: Index) -> float:
        """`polynomial_mmd` of the samples int64 [n] from the whole reference."""
        part = np.zeros(len(self._within))
        part[index] = 1.0
        within = part @ self._within @ part / (len(index) * (len(index) - 1))
        return float(within + self._reference - 2 * self._across[index].mean())


KID = KernelDistance("inception", "kid")
