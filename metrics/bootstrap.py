"""Confidence intervals by resampling.

Means over samples are resampled with replacement, the usual bootstrap. Statistics of a whole set, such as the Frechet
distance, are computed on halves of it, sampled without replacement: the spread over halves equals that of the bootstrap
to first order (for a mean: exactly), but no sample occurs twice, which distances between sets would take for less
variety. The bias of such statistics, which differs at half the size, does not enter: the interval is centered on the
value of the full set, and only its width comes from the resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.metrics.estimate import Estimate, Interval, check_level

Index = NDArray[np.int64]
Statistic = Callable[[Index], float]


@dataclass(frozen=True)
class Resampled(Estimate):
    """A statistic of all samples, with its bootstrap replicates.

    Attributes:
        value: Of all samples.
        replicates: Of each resample, float64 [R].
    """

    value: float
    replicates: NDArray[np.float64]

    def interval(self, level: float = 0.95) -> Interval:
        check_level(level)
        centered = self.replicates - self.replicates.mean()
        low, high = np.quantile(centered, [(1 - level) / 2, (1 + level) / 2])
        return Interval(self.value, float(self.value + low), float(self.value + high))

    def minus(self, other: Resampled) -> Resampled:
        """The paired difference from an estimate that was resampled with the same settings.

        Each resample of both then holds the same prompts and seeds: what makes a prompt easy or hard cancels.
        """
        return Resampled(self.value - other.value, self.replicates - other.replicates)


def resample(
    statistic: Statistic,
    count: int,
    *,
    groups: Sequence[Any] | None = None,
    halves: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> Resampled:
    """Computes a statistic on all samples and on every resample.

    Args:
        statistic: Called with int64 indices into the samples.
        count: Number of samples.
        groups: A label per sample; samples with the same label are resampled together. None: each is its own group.
        halves: Resample halves without replacement, for statistics of a whole set; see the module's docstring.
        resamples: Number of resamples.
        seed: Of the resampling.

    Raises:
        ArgumentError: If there are fewer than two groups or two resamples, or labels for another number of samples.
    """
    if resamples < 2:
        raise ArgumentError(f"resamples={resamples} is not allowed; it must be 2 or more")
    if groups is None:
        indices = _indices(count, halves, resamples, seed)
    else:
        members = members_of(count, groups)
        indices = (
            np.concatenate([members[i] for i in chosen]) for chosen in _indices(len(members), halves, resamples, seed)
        )
    replicates = np.array([statistic(index) for index in indices], dtype=np.float64)
    return Resampled(statistic(np.arange(count)), replicates)


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
    """The confidence interval of a statistic; the arguments are those of `resample`.

    Raises:
        ArgumentError: If `resample` or `Estimate.interval` raises it.
    """
    return resample(statistic, count, groups=groups, halves=halves, resamples=resamples, seed=seed).interval(level)


def mean_interval(values: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """The mean of values [N], one per sample, with its confidence interval.

    Raises:
        ArgumentError: If values are not one finite number per sample, and as `bootstrap`.
    """
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise ArgumentError(f"values of shape {list(found.shape)} must be one finite number per sample")
    return bootstrap(lambda index: float(found[index].mean()), len(found), resamples=resamples, level=level, seed=seed)


def members_of(count: int, groups: Sequence[Any] | None) -> list[Index]:
    """The samples of each group; each sample its own without labels.

    Raises:
        ArgumentError: If there are labels for another number of samples.
    """
    if groups is None:
        return [np.array([i]) for i in range(count)]
    if len(groups) != count:
        raise ArgumentError(f"groups has {len(groups)} labels for {count} samples; there must be one for each")
    by_label: dict[Any, list[int]] = {}
    for i, label in enumerate(groups):
        by_label.setdefault(label, []).append(i)
    return [np.array(found) for found in by_label.values()]


def _indices(count: int, halves: bool, resamples: int, seed: int) -> Iterator[Index]:
    """The indices of each resample: a half without replacement, or `count` with replacement."""
    if count < 2:
        raise ArgumentError(f"an interval needs at least 2 samples to resample; there are {count}")
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        yield rng.permutation(count)[: count // 2] if halves else rng.integers(count, size=count)
