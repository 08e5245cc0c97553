"""A test of whether two samples of codes have one distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Z = 4.753  # of a normal distribution, exceeded once in a million


def chi_square(one: Tensor, two: Tensor) -> tuple[float, float]:
    """Pearson's statistic of the homogeneity of two samples of equal size, and its limit.

    Outcomes that occur fewer than 10 times in both samples together count as one.

    Args:
        one: int64 [N].
        two: int64 [N].

    Returns:
        The statistic, and what it exceeds once in a million if both samples have one distribution (Wilson and Hilferty,
        1931).
    """
    assert one.shape == two.shape
    size = int(torch.cat([one, two]).max()) + 1
    counts = torch.stack([torch.bincount(each, minlength=size) for each in (one, two)]).double()
    rare = counts.sum(0) < 10
    counts = torch.cat([counts[:, ~rare], counts[:, rare].sum(1, keepdim=True)], dim=1)
    counts = counts[:, counts.sum(0) > 0]
    expected = counts.sum(0) / 2
    statistic = float(((counts - expected) ** 2 / expected).sum())
    degrees = max(counts.shape[1] - 1, 1)
    return statistic, degrees * (1 - 2 / (9 * degrees) + Z * math.sqrt(2 / (9 * degrees))) ** 3


def worst(one: Tensor, two: Tensor) -> float:
    """The largest statistic, over its limit, of codes int64 [N, K]: of each of the K, and of pairs modulo 4."""
    pairs = [(a % 4)[:, :-1] * 4 + (a % 4)[:, 1:] for a in (one, two)]
    columns = zip(torch.cat([one, pairs[0]], dim=1).unbind(1), torch.cat([two, pairs[1]], dim=1).unbind(1), strict=True)
    return max(statistic / limit for statistic, limit in (chi_square(a, b) for a, b in columns))
