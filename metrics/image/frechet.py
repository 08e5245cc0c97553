"""The Frechet distance between Gaussians fitted to features; FID (Heusel et al. 2017) where these are Inception's.

d^2 = |m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1 S2)^(1/2). The last trace is the sum of the singular values of A1' A2 for
any A with A A' = S, which needs no square root of a matrix: nothing complex appears, and covariances without full
rank, as those of fewer samples than features, are no special case.

It is biased upwards, the more the fewer samples there are: compare only values of equal N, and report N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features, read_features, same_width

Vector = Features


@dataclass(frozen=True)
class Gaussian:
    """Mean [D] and covariance [D, D] (divided by N - 1) of `count` samples; None when it is not known of how many."""

    mean: Vector
    covariance: Features
    count: int | None = None


@dataclass(frozen=True)
class Rooted:
    """Mean [D] and some R [r, D] with R' R the covariance: all that a distance needs, kept for use with many others."""

    mean: Vector
    root: Features


def fit(features: Any, name: str = "features") -> Gaussian:
    """The Gaussian of features [N, D].

    Raises:
        ArgumentError: As `read_features`; two samples are needed.
    """
    found = read_features(features, name, least=2)
    mean = found.mean(0)
    centred = found - mean
    return Gaussian(mean, centred.T @ centred / (len(found) - 1), len(found))


def frechet_distance(a: Any, b: Any, names: tuple[str, str] = ("generated", "reference")) -> float:
    """The squared Frechet distance, which is what FID reports.

    Args:
        a: Features [N, D] each, a `Gaussian`, or what `rooted` made of one.
        b: Features [N, D] each, a `Gaussian`, or what `rooted` made of one.
        names: What the caller calls them, for messages.

    Raises:
        ArgumentError: As `read_features`, or when the numbers of features differ.
    """
    x, y = rooted(a, names[0]), rooted(b, names[1])
    same_width(x.root, y.root, names)
    overlap = np.linalg.svd(x.root @ y.root.T, compute_uv=False).sum()
    shift = x.mean - y.mean
    return float(shift @ shift + (x.root**2).sum() + (y.root**2).sum() - 2 * overlap)


def rooted(given: Any, name: str = "features") -> Rooted:
    """The moments of features [N, D] or of a `Gaussian`.

    Raises:
        ArgumentError: As `read_features`.
    """
    if isinstance(given, Rooted):
        return given
    if not isinstance(given, Gaussian):
        found = read_features(given, name, least=2)
        mean = found.mean(0)
        centred = (found - mean) / np.sqrt(len(found) - 1)
        if len(found) <= found.shape[1]:
            return Rooted(mean, centred)
        return Rooted(mean, _root(centred.T @ centred))
    mean, covariance = given.mean, given.covariance
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise ArgumentError(
            f"{name} has a mean of shape {list(mean.shape)} and a covariance of shape {list(covariance.shape)}; "
            "they must be [D] and [D, D]"
        )
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
        raise ArgumentError(f"{name} has NaN or infinite values in its mean or covariance; all must be finite")
    return Rooted(mean, _root(covariance))


def _root(covariance: Features) -> Features:
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    # What rounding makes of an eigenvalue 0; the root of it would be no small number.
    kept = values > max(values[-1], 0.0) * len(values) * np.finfo(np.float64).eps
    return (vectors[:, kept] * np.sqrt(values[kept])).T
