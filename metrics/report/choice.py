"""The fastest recipe whose loss stays within what a reader allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

from mmspec.metrics.comparisons import simultaneous_ends
from mmspec.metrics.report.scales import higher_is_better, is_share

Record = Mapping[str, Any]
POINTS = (0.0, 0.01, 0.02, 0.05)  # losses of a share: none, 1, 2 and 5 points


@dataclass(frozen=True)
class Scale:
    """How losses of a metric are allowed.

    Attributes:
        metric: Its name.
        unit: "points" for a share of 1, of which a point is a hundredth; "" for other metrics.
        factor: Units of the scale in 1 of the metric.
        top: The largest loss offered, in units.
        step: Between offered losses, in units.
        fixed: The losses of the table, in the metric itself.
    """

    metric: str
    unit: str
    factor: float
    top: float
    step: float
    fixed: tuple[float, ...]


def candidates(rows: Sequence[Record]) -> list[Record]:
    """The recipes that may be chosen: all but those that failed the check of exactness."""
    return [row for row in rows if row["gate"] is not False]


def worst_loss(row: Record, metric: str, comparisons: int = 1) -> float | None:
    """The largest loss of a metric that a recipe's interval allows, against plain decoding; at least 0.

    Args:
        row: The recipe.
        metric: One that is better when higher, or when lower.
        comparisons: The number of intervals that hold at once; see `mmspec.metrics.comparisons.simultaneous_ends`.

    Returns:
        0 for plain decoding and for a recipe whose exactness was checked, which lose nothing; None without a
        difference.
    """
    if row["exact"]:
        return 0.0
    difference = row["quality"][metric]["difference"]
    if difference is None:
        return None
    low, high = simultaneous_ends(difference, comparisons)
    return max(0.0, -low if higher_is_better(metric) else high)


def relaxed_candidates(rows: Sequence[Record]) -> int:
    """The number of relaxed recipes among which one is picked, so that their intervals are to hold at once."""
    return sum(not row["exact"] for row in candidates(rows))


def choose(
    rows: Sequence[Record], metric: str, loss: float, axis: str = "speedup", comparisons: int | None = None
) -> Record | None:
    """The fastest recipe whose interval excludes a larger loss.

    Args:
        rows: The recipes.
        metric: One that is better when higher, or when lower.
        loss: The largest loss that is allowed, in the metric's own unit.
        axis: "speedup" or "tokens_per_call".
        comparisons: Of `worst_loss`; None is the number of relaxed recipes.

    Returns:
        None if no recipe qualifies: plain decoding is missing, or no recipe has a speed-up.
    """
    together = relaxed_candidates(rows) if comparisons is None else comparisons
    allowed = [
        row
        for row in candidates(rows)
        if row["speed"][axis] is not None
        and (worst := worst_loss(row, metric, together)) is not None
        and worst <= loss + 1e-12
    ]
    return max(allowed, key=lambda row: float(row["speed"][axis]["value"]), default=None)


def scale_of(rows: Sequence[Record], metric: str) -> Scale | None:
    """The losses to offer for a metric; None if it is neither good nor bad, or no recipe has a difference."""
    if higher_is_better(metric) is None:
        return None
    together = relaxed_candidates(rows)
    worst = [loss for row in candidates(rows) if (loss := worst_loss(row, metric, together)) is not None]
    if not any(not row["exact"] and row["quality"][metric]["difference"] for row in candidates(rows)):
        return None
    factor = 100.0 if is_share(metric) else 1.0
    most = max([*worst, 1e-9]) * factor
    step = 10.0 ** floor(log10(most / 100))
    step *= max(m for m in (1, 2, 5) if m * step * 50 <= most or m == 1)
    top = float(f"{ceil(most / step) * step:.10g}")
    fixed = POINTS if is_share(metric) else tuple(float(f"{top * part:.1g}") for part in (0.0, 0.1, 0.25, 0.5))
    return Scale(metric, "points" if is_share(metric) else "", factor, top, float(f"{step:.10g}"), fixed)
