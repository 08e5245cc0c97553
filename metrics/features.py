"""Features: what an extractor makes of samples, one row each. Every metric reads them through the checks here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.errors import ArgumentError

Features = NDArray[np.float64]


def read_features(values: Any, name: str, least: int = 1) -> Features:
    """`values` as float64 [N, D].

    Args:
        values: An array or tensor [N, D] of any number type, on any device.
        name: What the caller calls it, for messages.
        least: How many rows the metric needs.

    Raises:
        ArgumentError: For another number of axes, too few rows, no columns, or values that are not finite.
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


def read_pair(a: Any, b: Any, names: tuple[str, str], least: int = 1) -> tuple[Features, Features]:
    """Two sets of features of one extractor, moved together so that their common mean is 0.

    Distances do not change by that, but the digits do: features far from the origin would lose theirs to rounding.

    Raises:
        ArgumentError: As `read_features`, and when they do not have the same number of columns.
    """
    first, second = read_features(a, names[0], least), read_features(b, names[1], least)
    same_width(first, second, names)
    centre = (first.mean(0) + second.mean(0)) / 2
    return first - centre, second - centre


def same_width(a: Features, b: Features, names: tuple[str, str]) -> None:
    """Checks that both have the same number of columns.

    Raises:
        ArgumentError: Unless both have the same number of columns.
    """
    if a.shape[-1] != b.shape[-1]:
        raise ArgumentError(
            f"{names[0]} has {a.shape[-1]} features, {names[1]} has {b.shape[-1]}; both must come from one extractor"
        )


def square_distances(a: Features, b: Features) -> Features:
    """Squared Euclidean distances [N, M]; exact zeros may come out as small positive numbers, never as negative."""
    norms = (a * a).sum(1)[:, None] + (b * b).sum(1)[None]
    return np.maximum(norms - 2 * (a @ b.T), 0.0)
