"""Tests of whether two samples of codes have one distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import mmspec

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


def check_accelerated_samples(obj: Any, sample: Callable[[], int], count: int, outcomes: int) -> None:
    """Checks that samples of an object, which `sample` draws, have one distribution with and without mmspec.

    Args:
        obj: What `mmspec.accelerate` takes.
        sample: Draws one.
        count: Samples of each kind.
        outcomes: More different ones than this are expected.
    """
    torch.manual_seed(0)
    own = torch.tensor([sample() for _ in range(count)])
    with mmspec.accelerated(obj, "scd:window=3,start=random"):
        ours = torch.tensor([sample() for _ in range(count)])
        assert mmspec.last_stats(obj) is not None
    statistic, limit = chi_square(own, ours)
    assert len(own.unique()) > outcomes and statistic < limit
