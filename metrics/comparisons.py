"""Many differences read at once: corrected significance (Holm), and the smallest difference that would have been seen.

Results hold the intervals of differences and not their resamples, so that everything here is computed from intervals:
a difference is taken to be normal, with the standard error that its 95 % interval implies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
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
    """Two-sided p-value of a difference with this 95 % interval."""
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
    """The smallest true difference found with probability `POWER` at level `LEVEL` / `comparisons`, two-sided."""
    return (_NORMAL.inv_cdf(1 - LEVEL / (2 * comparisons)) + _NORMAL.inv_cdf(POWER)) * standard_error(interval)


def widening(count: int) -> float:
    """The factor by which 95 % intervals grow so that `count` of them hold at once (Bonferroni)."""
    return _NORMAL.inv_cdf(1 - LEVEL / (2 * max(count, 1))) / _Z95


def compare_all(differences: Sequence[Interval]) -> list[Comparison]:
    """Every difference of a family, each corrected for all."""
    alone = [p_value(one) for one in differences]
    return [
        Comparison(p, adjusted, detectable(one, len(differences)))
        for p, adjusted, one in zip(alone, holm(alone), differences, strict=True)
    ]
