"""Many differences read at once: corrected significance (Holm), and the smallest difference that would have been seen.

Results hold the intervals of differences and not their resamples, so that everything here is computed from intervals:
a difference is taken to be normal, with the standard error that its 95 % interval implies. Differences of shares are
not, least of all where samples hardly differ: theirs bring a p-value and wider ends, see
`mmspec.metrics.evaluation.quality.Difference`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, log, sqrt
from statistics import NormalDist
from typing import Any

LEVEL = 0.05
POWER = 0.8
_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.975)

Interval = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What one difference among several says.

    Attributes:
        p: Two-sided p-value of the difference alone, that no difference exists.
        adjusted: The p-value after Holm's correction for all differences of the family.
        detectable: The smallest true difference that would have been significant with probability `POWER`, at the
            level that the correction leaves to the hardest-tested difference (Bonferroni's).
    """

    p: float
    adjusted: float
    detectable: float

    @property
    def significant(self) -> bool:
        """Whether a difference exists, with at most 5 % risk of one false claim in the whole family."""
        return self.adjusted < LEVEL


def standard_error(interval: Interval) -> float:
    """Of the value in the middle of a 95 % interval."""
    return float(interval["high"] - interval["low"]) / (2 * _Z95)


def p_value(interval: Interval) -> float:
    """Two-sided p-value of a difference with this 95 % interval, or the one that it brings."""
    if (own := interval.get("p")) is not None:
        return float(own)
    error, value = standard_error(interval), float(interval["value"])
    if isclose(value, 0.0, abs_tol=1e-12):
        return 1.0
    return 2 * (1 - _NORMAL.cdf(abs(value) / error)) if error else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): reject where below the level, with at most that risk of any false rejection."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def detectable(interval: Interval, comparisons: int = 1) -> float:
    """The smallest true difference found with probability `POWER` at level `LEVEL` / `comparisons`, two-sided.

    A share varies more where more samples differ, each by `sample_effect` e: a true difference d, of which none has
    been seen, adds d e to the square of the standard error. What is found is then an upper bound.
    """
    factor = _NORMAL.inv_cdf(1 - LEVEL / (2 * comparisons)) + _NORMAL.inv_cdf(POWER)
    added = factor**2 * (interval.get("sample_effect") or 0.0) / 2
    return added + sqrt(added**2 + (factor * standard_error(interval)) ** 2)


def widening(count: int) -> float:
    """The factor by which 95 % intervals grow so that `count` of them hold at once (Bonferroni)."""
    return _NORMAL.inv_cdf(1 - LEVEL / (2 * max(count, 1))) / _Z95


def simultaneous_ends(difference: Interval, count: int) -> tuple[float, float]:
    """The ends of an interval that is wide enough for `count` of them to hold at once.

    Args:
        difference: With its 95 % interval.
        count: Number of intervals; 1 leaves the 95 % interval as it is.
    """
    value, low, high = (float(difference[key]) for key in ("value", "low", "high"))
    if count <= 1:
        return low, high
    factor = widening(count)
    if (own := difference.get("simultaneous")) is not None:
        low, high = float(own["low"]), float(own["high"])
        # For more than were known when it was measured: no tail of a share falls slower than an exponential one.
        factor = max(1.0, log(LEVEL / (2 * count)) / log(LEVEL / (2 * max(own["comparisons"], 1))))
    return value + factor * (low - value), value + factor * (high - value)


def compare_all(differences: Sequence[Interval]) -> list[Comparison]:
    """Every difference of a family, each corrected for all."""
    alone = [p_value(one) for one in differences]
    return [
        Comparison(p, adjusted, detectable(one, len(differences)))
        for p, adjusted, one in zip(alone, holm(alone), differences, strict=True)
    ]
