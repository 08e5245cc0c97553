"""Differences from plain decoding: paired, corrected for their number, each with what could have been seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.metrics.comparisons import Comparison, compare_all
from mmspec.metrics.report.grid import grid, interval_cell, name_cell, rounded
from mmspec.metrics.report.markup import Element
from mmspec.metrics.report.scales import higher_is_better, is_share

Record = Mapping[str, Any]


def compared(rows: Sequence[Record]) -> dict[tuple[str, str], Comparison]:
    """By recipe and metric, every difference of one run, corrected for all of them."""
    found = {
        (row["recipe"], name): quality["difference"]
        for row in rows
        for name, quality in row["quality"].items()
        if quality["difference"] is not None
    }
    return dict(zip(found, compare_all(list(found.values())), strict=True))


def differences(rows: Sequence[Record], name: str) -> list[Element]:
    """The table of one run; empty without differences.

    Args:
        rows: The recipes of the run.
        name: Of the run, "" for the only one.
    """
    family = compared(rows)
    if not family:
        return []
    metrics = list(rows[0]["quality"])
    lines = [
        Element(
            "tr",
            name_cell(row["recipe"]),
            (_cell(metric, row["quality"][metric], family.get((row["recipe"], metric))) for metric in metrics),
        )
        for row in rows
        if any((row["recipe"], metric) in family for metric in metrics)
    ]
    title = f"{name}: difference from plain decoding" if name else "Difference from plain decoding"
    return [
        Element("h2", title),
        Element(
            "p",
            "Paired by prompt and seed; in brackets each difference's own 95 % interval. The table makes "
            f"{len(family)} comparisons. Colored and named are those that remain after Holm's correction for all of "
            "them, so that the risk of one false claim in the table is at most 5 %; an open circle marks an interval "
            "that excludes 0 but does not remain. Elsewhere no difference was seen, which is no proof of none: below "
            "stands the smallest one that would have been seen in 80 % of such runs, or that the samples are too few "
            "to see any.",
        ),
        grid(["recipe", *metrics], lines, title),
    ]


def verdict(metric: str, difference: Record, comparison: Comparison) -> str:
    """What a difference says: "worse", "better", "differs", or "" if none was seen."""
    better = higher_is_better(metric)
    if not comparison.significant:
        return ""
    return "differs" if better is None else "better" if (difference["value"] > 0) == better else "worse"


def _cell(metric: str, quality: Record, comparison: Comparison | None) -> Element:
    difference = quality["difference"]
    if difference is None or comparison is None:
        return interval_cell(None)
    said = verdict(metric, difference, comparison)
    if said:
        return interval_cell(difference, {"worse": "bad", "better": "good"}.get(said), [said])
    open_ = difference["low"] > 0 or difference["high"] < 0
    seen = ("\N{WHITE CIRCLE} " if open_ else "") + would_see(metric, comparison)
    return interval_cell(difference, None, [seen, f"N = {quality['n']:,}"])


def would_see(metric: str, comparison: Comparison) -> str:
    """The smallest difference that would have been seen; samples may be too few to see the largest one of shares."""
    if is_share(metric) and comparison.detectable >= 1:
        return "would see none"
    return f"would see {rounded(comparison.detectable)}"
