"""The charts of quality against speed, by two axes of speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.metrics.evaluation.results import timed_once
from mmspec.metrics.report.chart import Point, chart
from mmspec.metrics.report.choice import candidates
from mmspec.metrics.report.grid import key_of
from mmspec.metrics.report.markup import Element
from mmspec.metrics.report.scales import higher_is_better

Record = Mapping[str, Any]
AXES = {"tokens_per_call": "tokens per target call", "speedup": "wall-clock speed-up"}


def charts(rows: Sequence[Record], metrics: Sequence[str]) -> list[Element]:
    """A chart per metric and axis of speed; recipes that failed the check of exactness are omitted."""
    passed = candidates(rows)
    timed = measured(passed, "speedup")
    switches, panels = [], []
    for i, axis in enumerate(AXES):
        label = axis_label(axis, rows)
        switches.append(
            Element("input", type="radio", name="axis", id=f"by-{axis}", checked="checked" if i == 0 else None)
        )
        switches.append(Element("label", label, for_=f"by-{axis}"))
        figures = []
        for name in metrics:
            better = higher_is_better(name)
            if better is None or not (shown := measured(passed, axis)):
                continue
            points = [point(row, axis, name) for row in shown]
            figures.append(chart(points, f"{name} ({'higher' if better else 'lower'} is better)", better, label))
        panels.append(Element("div", figures, class_=f"charts {axis}"))
    notes = [
        "Bars are 95 % intervals over prompts. Diamonds keep the model's distribution, circles do "
        "not; the dashed line joins the recipes that no other beats in both speed and quality. Hover over a point for "
        "its numbers, click it to mark its recipe everywhere; all numbers are in the table below."
    ]
    if any(timed_once(row["speed"], row["batch"]) for row in timed):
        notes.append("A speed-up that one call measured has no interval, and says nothing of how much it varies.")
    sizes = {row["quality"][name]["n"] for row in rows for name in metrics}
    if len(sizes) > 1:
        listed = ", ".join(f"{size:,}" for size in sorted(sizes))
        notes.append(f"Distances of different numbers of samples ({listed}) must not be compared.")
    return [
        Element("h2", "Quality against speed", id="curves"),
        Element("p", " ".join(notes)),
        Element("div", switches, panels, class_="switch"),
    ]


def measured(rows: Sequence[Record], axis: str) -> list[Record]:
    """The recipes that an axis of speed has a value of; results without timings have no speed-ups."""
    return [row for row in rows if row["speed"][axis] is not None]


def axis_label(axis: str, rows: Sequence[Record]) -> str:
    """The name of an axis of speed; a wall-clock speed-up holds for a batch size."""
    batches = sorted({row["batch"] for row in rows})
    held = f", batch {' and '.join(map(str, batches))}" if axis == "speedup" else ""
    return AXES[axis] + held


def point(row: Record, axis: str, metric: str) -> Point:
    """A recipe's place in a chart."""
    recipe = row["recipe"].removeprefix(f"{row['run']}: ")
    name, _, knobs = recipe.partition(":")
    family = f"{row['run']}: {name}" if row["run"] else name
    mark = ",".join(setting.partition("=")[2] for setting in knobs.split(",")) if knobs else ""
    speed, quality = row["speed"][axis], row["quality"][metric]
    return Point(row["recipe"], family, _span(speed), _span(quality), row["exact"], mark, key_of(row["recipe"]))


def _span(interval: Record) -> tuple[float, float, float]:
    return interval["value"], interval["low"], interval["high"]
