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
    """The interval of `statistic`, a function of which of `count` samples to use.

    To compare two recipes, let the statistic be their difference over the same samples, i.e. the same prompts and
    seeds: what makes a prompt easy or hard then cancels.

    **Arguments:**

    - `statistic`: called with int64 indices into the samples: once with all of them, and once per resample.
    - `groups`: a label per sample; those of one label are drawn together. None: each is a group of its own.
    - `halves`: for quantities of a whole set; see above.
    - `level`: of confidence.

    **Raises:** `ArgumentError` for fewer than two groups, or settings out of range.
    """
    if resamples < 2:
        raise ArgumentError(f"resamples={resamples} is not allowed; it must be 2 or more")
    if not 0 < level < 1:
        raise ArgumentError(f"level={level} is not allowed; it must lie between 0 and 1")
    if groups is None:
        draws = _draws(count, halves, resamples, seed)
    else:
        members = _members(count, groups)
        draws = (
            np.concatenate([members[i] for i in chosen]) for chosen in _draws(len(members), halves, resamples, seed)
        )
    found = np.array([statistic(index) for index in draws])
    value = statistic(np.arange(count))
    low, high = np.quantile(found - found.mean(), [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(value + low), float(value + high))


def mean_interval(values: Any, *, resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """The mean of values [N], one per sample, with its interval. **Raises:** `ArgumentError` as `bootstrap`."""
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
