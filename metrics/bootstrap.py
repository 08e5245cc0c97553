"""Confidence intervals by resampling.

Quantities that are means of samples are resampled with replacement, the usual bootstrap. Quantities of a whole set, as
the Frechet distance, are taken of halves of it, drawn without replacement: the spread of halves equals that of the
bootstrap to first order (of a mean: exactly), but no sample occurs twice, which distances of sets would take for less
variety. Their bias, which differs at half the size, does not enter: the interval lies around the value of the full set,
and only its width comes from the resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError

Index = NDArray[np.int64]
Statistic = Callable[[Index], float]


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Resampled:
    """A quantity of all samples, and of each resample, float64 [R]."""

    value: float
    draws: NDArray[np.float64]

    def interval(self, level: float = 0.95) -> Interval:
        """The interval of confidence `level`.

        Raises:
            ArgumentError: For a level outside 0..1.
        """
        if not 0 < level < 1:
            raise ArgumentError(f"level={level} is not allowed; it must lie between 0 and 1")
        low, high = np.quantile(self.draws - self.draws.mean(), [(1 - level) / 2, (1 + level) / 2])
        return Interval(self.value, float(self.value + low), float(self.value + high))

    def minus(self, other: Resampled) -> Resampled:
        """The paired difference of two quantities that were resampled with the same settings.

        Both then used the same prompts and seeds in each resample: what makes a prompt easy or hard cancels.
        """
        return Resampled(self.value - other.value, self.draws - other.draws)


def resample(
    statistic: Statistic,
    count: int,
    *,
    groups: Sequence[Any] | None = None,
    halves: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> Resampled:
    """`statistic`, a function of which of `count` samples to use, for all of them and for every resample.

    Args:
        statistic: Called with int64 indices into the samples.
        groups: A label per sample; those of one label are drawn together. None: each is a group of its own.
        halves: For quantities of a whole set; see above.

    Raises:
        ArgumentError: For fewer than two groups, or settings out of range.
    """
    if resamples < 2:
        raise ArgumentError(f"resamples={resamples} is not allowed; it must be 2 or more")
    if groups is None:
        draws = _draws(count, halves, resamples, seed)
    else:
        members = _members(count, groups)
        draws = (
            np.concatenate([members[i] for i in chosen]) for chosen in _draws(len(members), halves, resamples, seed)
        )
    found = np.array([statistic(index) for index in draws], dtype=np.float64)
    return Resampled(statistic(np.arange(count)), found)


def bootstrap(
    statistic: Statistic,
    count: int,
    *,
    groups: Sequence[Any] | None = None,
    halves: bool = False,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The interval of `statistic`; see `resample`.

    Raises:
        ArgumentError: As there, or for a wrong level.
    """
    return resample(statistic, count, groups=groups, halves=halves, resamples=resamples, seed=seed).interval(level)


def mean_interval(values: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """The mean of values [N], one per sample, with its interval.

    Raises:
        ArgumentError: As `bootstrap`.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ArgumentError(f"values of shape {list(found.shape)} must be one finite number per sample")
    return bootstrap(lambda index: float(found[index].mean()), len(found), resamples=resamples, level=level, seed=seed)


def _members(count: int, groups: Sequence[Any]) -> list[Index]:
    """The samples of each group."""
    if len(groups) != count:
        raise ArgumentError(f"groups has {len(groups)} labels for {count} samples; there must be one for each")
    by_label: dict[Any, list[int]] = {}
    for i, label in enumerate(groups):
        by_label.setdefault(label, []).append(i)
    return [np.array(found) for found in by_label.values()]


def _draws(count: int, halves: bool, resamples: int, seed: int) -> Iterator[Index]:
    if count < 2:
        raise ArgumentError(f"an interval needs at least 2 samples to draw from; there are {count}")
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield rng.permutation(count)[: count // 2] if halves else rng.integers(count, size=count)
