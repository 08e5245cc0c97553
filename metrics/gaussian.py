"""Gaussians fitted to features: the statistics from which a Frechet distance is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features, as_features

Vector = Features


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of a set of samples.

    Attributes:
        mean: float64 [D].
        covariance: float64 [D, D], divided by N - 1.
        count: N; None if it is unknown.
    """

    mean: Vector
    covariance: Features
    count: int | None = None


@dataclass(frozen=True)
class GaussianRoot:
    """Mean [D] and some R [r, D] with R' R the covariance, computed once for distances to many other Gaussians."""

    mean: Vector
    root: Features


def fit(features: Any, name: str = "features") -> Gaussian:
    """The Gaussian of features [N, D].

    Raises:
        ArgumentError: If `as_features` raises it; at least two samples are needed.
    """
    found = as_features(features, name, least=2)
    mean = found.mean(0)
    centered = found - mean
    return Gaussian(mean, centered.T @ centered / (len(found) - 1), len(found))


def gaussian_root(given: Any, name: str = "features") -> GaussianRoot:
    """The root of features [N, D], of a `Gaussian`, or a `GaussianRoot` as it is.

    Raises:
        ArgumentError: If `as_features` raises it, and for a `Gaussian` of other shapes or with values that are not
            finite.
    """
    if isinstance(given, GaussianRoot):
        return given
    if not isinstance(given, Gaussian):
        found = as_features(given, name, least=2)
        mean = found.mean(0)
        centered = (found - mean) / np.sqrt(len(found) - 1)
        if len(found) <= found.shape[1]:
            return GaussianRoot(mean, centered)
        return GaussianRoot(mean, _root(centered.T @ centered))
    mean, covariance = given.mean, given.covariance
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise ArgumentError(
            f"{name} has a mean of shape {list(mean.shape)} and a covariance of shape {list(covariance.shape)}; "
            "they must be [D] and [D, D]"
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise ArgumentError(f"{name} has NaN or infinite values in its mean or covariance; all must be finite")
    return GaussianRoot(mean, _root(covariance))


def _root(covariance: Features) -> Features:
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    # Rounding turns an eigenvalue 0 into a small number whose root is not small.
    kept = values > max(values[-1], 0.0) * len(values) * np.finfo(np.float64).eps
    return (vectors[:, kept] * np.sqrt(values[kept])).T
