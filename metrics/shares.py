"""Confidence intervals of shares that are honest near 0 and 1, of few samples, and of samples that are all alike.

A bootstrap of samples that are all right has width zero, although others might be wrong; with one small fault it is
still far too narrow. The intervals here add what has not been seen: the lower limit counts one more prompt with the
least possible score, the upper limit one more with the largest, and all prompts have random weights, independent
exponential variables (Gaffke 2005, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a
nonnegative variable"; Learned-Miller and Thomas 2019, arXiv:1905.06208). For scores of 0 and 1 the limits are those of
Clopper and Pearson (1934) and the test of a paired difference is the sign test, both exact. Both limits rise with every
score: no fault makes a recipe look better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.metrics.bootstrap import members_of
from mmspec.metrics.estimate import Estimate, Interval, check_level
from mmspec.metrics.exponential_sums import probability_above_zero

_ROUNDING = 1e-9
_STEPS = 60
_NORMAL = NormalDist()

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Share(Estimate):
    """A share of 1: the sum of the parts over that of the totals, or a difference of two such shares.

    Attributes:
        parts: Of each prompt, float64 [G]: the sum of its samples' scores, or the number of its errors.
        totals: Of each prompt, float64 [G]: the number of its samples, or of what may be wrong.
        least: The smallest ratio of a part to its total that is possible.
        most: The largest ratio.
    """

    parts: Array
    totals: Array
    least: float = 0.0
    most: float = 1.0

    @property
    def value(self) -> float:  # type: ignore[override]
        return float(self.parts.sum() / max(self.totals.sum(), 1.0))

    def interval(self, level: float = 0.95) -> Interval:
        check_level(level)
        tail = (1 - level) / 2
        low = _solve(self._below, tail, self.least, self.value)
        high = _solve(self._above, tail, self.most, self.value)
        return Interval(self.value, low, high)

    def minus(self, other: Share) -> Share:
        """The paired difference.

        Raises:
            ArgumentError: If the shares are not of the same prompts.
        """
        if not np.array_equal(self.totals, other.totals):
            raise ArgumentError("shares can only be compared pair by pair if they are of the same prompts")
        most = max(self.most, other.most)
        return Share(self.parts - other.parts, self.totals, -most, most)

    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the value is 0, for a difference.

        It is at most 0.05 exactly where the interval of level 0.95 excludes 0, and likewise at other levels.
        """
        return min(1.0, 2 * min(self._below(0.0), self._above(0.0)))

    @property
    def sample_effect(self) -> float:
        """How much one prompt that differs changes the value, on average over those that do; all of it if none does."""
        total = float(np.abs(self.parts).sum())
        mean = float((self.parts**2).sum()) / total if total > _ROUNDING else self._total * self.most
        return mean / max(float(self.totals.sum()), 1.0)

    def _below(self, share: float) -> float:
        """Probability that a randomly weighted share, one prompt of the least score added, is below this one."""
        weights, counts = self._against(share, self.least)
        return probability_above_zero(-weights, counts)

    def _above(self, share: float) -> float:
        """Likewise above it, one prompt of the largest score added."""
        return probability_above_zero(*self._against(share, self.most))

    def _against(self, share: float, unseen: float) -> tuple[Array, Array]:
        """Distinct values of what each prompt adds to a weighted share in excess of this one, and their counts."""
        excess = np.append(self.parts - share * self.totals, self._total * (unseen - share))
        excess = np.where(np.abs(excess) < _ROUNDING, 0.0, excess)
        values, counts = np.unique(excess.round(10), return_counts=True)
        return values, counts.astype(np.float64)

    @property
    def _total(self) -> float:
        """The total of a prompt that was not seen: the mean."""
        return max(float(self.totals.mean()), _ROUNDING)


def share_of(values: Any, groups: Sequence[Any] | None = None) -> Share:
    """The mean of scores from 0 to 1, one per sample, float64 [N].

    Args:
        values: The scores.
        groups: A label per sample, such as its prompt; samples with the same label count as one observation. None:
            each is its own.

    Raises:
        ArgumentError: If there are fewer than two groups, labels for another number of samples, or scores outside.
    """
    scores = np.asarray(values, dtype=np.float64)
    if not ((scores >= -_ROUNDING) & (scores <= 1 + _ROUNDING)).all():
        raise ArgumentError(f"shares from {scores.min():g} to {scores.max():g} are not allowed; they must be 0 to 1")
    return ratio_of(scores.clip(0, 1), np.ones(len(scores)), groups)


def ratio_of(parts: Array, totals: Array, groups: Sequence[Any] | None = None) -> Share:
    """The sum of parts over the sum of totals, float64 [N] each, such as errors and words; a ratio may exceed 1.

    Args:
        parts: At least 0, finite.
        totals: At least 0, finite. What is below 1, such as a prompt without a word, counts as 1 in the largest ratio.

    Raises:
        ArgumentError: As `share_of`, or if a part or a total is below 0 or not finite.
    """
    for name, numbers in (("parts", parts), ("totals", totals)):
        if not ((numbers >= 0) & (numbers < np.inf)).all():
            raise ArgumentError(f"{name} from {numbers.min():g} to {numbers.max():g} are not allowed; give finite ones")
    members = members_of(len(parts), groups)
    if len(members) < 2:
        raise ArgumentError(f"an interval needs at least 2 samples, or prompts; there are {len(members)}")
    by_group = np.array([(parts[index].sum(), totals[index].sum()) for index in members])
    largest = (by_group[:, 0] / by_group[:, 1].clip(min=1.0)).max() if (parts > totals).any() else 1.0
    return Share(by_group[:, 0], by_group[:, 1], most=max(1.0, float(largest)))


def _solve(probability: Callable[[float], float], tail: float, outer: float, inner: float) -> float:
    """The point at which a probability that rises from an outer point to an inner one reaches that of a tail."""
    # Regula falsi on normal quantiles, in which the probability is nearly straight, after Dowell and Jarratt (1971).
    wanted = _NORMAL.inv_cdf(tail)

    def excess(point: float) -> float:
        return _NORMAL.inv_cdf(min(max(probability(point), 1e-300), 1 - 1e-15)) - wanted

    if abs(inner - outer) < _ROUNDING:
        return outer
    ends, values = [outer, inner], [excess(outer), excess(inner)]
    for _ in range(_STEPS):
        point = ends[1] - values[1] * (ends[1] - ends[0]) / (values[1] - values[0])
        found = excess(point)
        if abs(found) < _ROUNDING or abs(ends[1] - ends[0]) < _ROUNDING:
            break
        if found * values[1] < 0:
            ends[0], values[0] = ends[1], values[1]
        else:
            values[0] /= 2  # the end that stays would stay for long
        ends[1], values[1] = point, found
    return point
