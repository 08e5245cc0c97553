"""Kernel Inception distance (Binkowski et al. 2018): squared MMD under the kernel (x.y / D + 1)^3, without bias.

Unlike the Frechet distance it does not grow when samples are few; a value below 0 is possible and means "no difference
to be seen".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features, read_features, same_width

NAMES = ("generated", "reference")


@dataclass(frozen=True)
class KID:
    """`value`: the mean over `subsets` of `subset_size` samples each; `spread`: their standard deviation, 0 for one.

    The spread tells how much one subset strays, not how far the value is off: for that see `mmspec.metrics.bootstrap`.
    """

    value: float
    spread: float
    subsets: int
    subset_size: int


def kid(
    generated: Any, reference: Any, subsets: int = 100, subset_size: int = 1000, seed: int = 0, degree: int = 3
) -> KID:
    """KID of features [N, D] against [M, D].

    Subsets are drawn without replacement, by a generator of their own. Where both sides fit into one subset, that one
    is taken, and the value is the estimate from all samples.

    Raises:
        ArgumentError: As `read_features` (two samples are needed), or for sizes below what is possible.
    """
    x, y = read_features(generated, NAMES[0], least=2), read_features(reference, NAMES[1], least=2)
    same_width(x, y, NAMES)
    for name, value, low in (("subsets", subsets, 1), ("subset_size", subset_size, 2), ("degree", degree, 1)):
        if value < low:
            raise ArgumentError(f"{name}={value} is not allowed; it must be {low} or more")
    if max(len(x), len(y)) <= subset_size:
        return KID(polynomial_mmd(x, y, degree), 0.0, 1, max(len(x), len(y)))
    rng = np.random.default_rng(seed)
    size = min(subset_size, len(x), len(y))
    values = [
        polynomial_mmd(x[rng.choice(len(x), size, False)], y[rng.choice(len(y), size, False)], degree)
        for _ in range(subsets)
    ]
    return KID(float(np.mean(values)), float(np.std(values)), subsets, size)


def polynomial_mmd(x: Features, y: Features, degree: int = 3) -> float:
    """The unbiased estimate of squared MMD from all pairs of x [N, D] and y [M, D]."""
    within = 0.0
    for z in (x, y):
        kernel = _kernel(z, z, degree)
        within += (kernel.sum() - np.trace(kernel)) / (len(z) * (len(z) - 1))
    return float(within - 2 * _kernel(x, y, degree).mean())


def _kernel(x: Features, y: Features, degree: int) -> Features:
    return np.asarray((x @ y.T / x.shape[1] + 1) ** degree)
