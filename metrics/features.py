"""Features: the rows that an extractor computes, one per sample, validated here for every metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.errors import ArgumentError

Features = NDArray[np.float64]


def as_features(values: Any, name: str, least: int = 1) -> Features:
    """Converts values to float64 [N, D] and validates them.

    Args:
        values: An array or tensor [N, D] of any number type, on any device.
        name: What the caller calls it, for messages.
        least: Number of rows that the metric needs.

    Raises:
        ArgumentError: If there are not two axes, too few rows, no columns, or values that are not finite.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().double().cpu().numpy()  # through double: numpy has no bfloat16
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 2 or found.shape[1] == 0:
        raise ArgumentError(f"{name} has shape {list(found.shape)}; it must be [samples, features]")
    if len(found) < least:
        raise ArgumentError(f"{name} has {len(found)} samples; this metric needs at least {least}")
    broken = np.flatnonzero(~np.isfinite(found).all(1))
    if len(broken):
        raise ArgumentError(f"{name} has NaN or infinite values, first in sample {broken[0]}; all must be finite")
    return found


def as_feature_pair(a: Any, b: Any, names: tuple[str, str], least: int = 1) -> tuple[Features, Features]:
    """Validates two sets of features of one extractor and moves them together so that their common mean is 0.

    Distances do not change by the shift, but features far from the origin would lose digits to rounding without it.

    Raises:
        ArgumentError: If `as_features` raises it, and if the numbers of columns differ.
    """
    first, second = as_features(a, names[0], least), as_features(b, names[1], least)
    check_same_width(first, second, names)
    center = (first.mean(0) + second.mean(0)) / 2
    return first - center, second - center


def check_same_width(a: Features, b: Features, names: tuple[str, str]) -> None:
    """Checks that both sets have the same number of columns.

    Raises:
        ArgumentError: If they do not.
    """
    if a.shape[-1] != b.shape[-1]:
        raise ArgumentError(
            f"{names[0]} has {a.shape[-1]} features, {names[1]} has {b.shape[-1]}; both must come from one extractor"
        )


def unit_length(embeddings: Features, name: str) -> Features:
    """Embeddings [N, D] scaled to length 1.

    Raises:
        ArgumentError: If one has length 0.
    """
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        raise ArgumentError(f"{name} has an embedding of length 0 in sample {empty[0]}; it has no direction")
    return np.asarray(embeddings / lengths)


def square_distances(a: Features, b: Features) -> Features:
    """Squared Euclidean distances [N, M]; an exact zero may come out as a small positive number, never below 0."""
    norms = (a * a).sum(1)[:, None] + (b * b).sum(1)[None]
    return np.maximum(norms - 2 * (a @ b.T), 0.0)
