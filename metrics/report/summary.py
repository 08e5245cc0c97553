"""One image for a talk: a metric against speed, and the fastest recipe at three losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmspec.errors import ArgumentError, unknown_name
from mmspec.metrics.evaluation.results import short, short_speedup, timed_once
from mmspec.metrics.report.canvas import Canvas
from mmspec.metrics.report.chart import Point, front, tick_label, ticks
from mmspec.metrics.report.choice import candidates
from mmspec.metrics.report.curves import axis_label, measured, point
from mmspec.metrics.report.page import common_metrics, named_rows
from mmspec.metrics.report.runs import ReportRun
from mmspec.metrics.report.scales import higher_is_better
from mmspec.metrics.report.slider import answers, scales
from mmspec.metrics.report.style import COLORS

Record = Mapping[str, Any]
WIDTH, HEIGHT = 1600, 900
LEFT, RIGHT, TOP, BOTTOM = 130, 1010, 150, 750  # of the chart
COLUMN = 1070  # where the texts at the right start


def summary(runs: Sequence[ReportRun], metric: str | None = None, axis: str | None = None) -> Canvas:
    """The image.

    Args:
        runs: What to show.
        metric: The vertical axis; None is the first that can lose, shares of 1 before others.
        axis: "speedup" or "tokens_per_call"; None is the first if every recipe was timed in more than one call.

    Raises:
        UnknownNameError: If the runs have no such metric.
        ArgumentError: If no metric can lose, because none has a better direction or there is only plain decoding, or
            if the axis is "speedup" and no recipe has one.
    """
    rows, metrics = named_rows(runs), common_metrics(runs)
    offered = scales(rows, metrics)
    if not metrics:
        raise ArgumentError("there is nothing to summarize: the runs have no metric in common")
    if not offered:
        raise ArgumentError("there is nothing to summarize: no relaxed recipe has a metric with a better direction")
    passed = candidates(rows)
    if axis is None:
        repeated = all(row["speed"]["speedup"] and not timed_once(row["speed"], row["batch"]) for row in passed)
        axis = "speedup" if repeated else "tokens_per_call"
    shown = measured(passed, axis)
    if not shown:
        raise ArgumentError("--axis speedup: these results have no speed-up; use --axis tokens_per_call")
    names = [scale.metric for scale in offered]
    if metric is not None and metric not in names:
        raise unknown_name("metric of these results", metric, names)
    chosen = next((s for s in offered if s.metric == metric), None) or next((s for s in offered if s.unit), offered[0])
    model = " and ".join(dict.fromkeys(Path(run.record["config"]["model"]).name for run in runs))
    canvas = Canvas(WIDTH, HEIGHT, f"{model}: {chosen.metric} against speed")
    canvas.text((60, 80), canvas.title, 44, bold=True)
    _chart(canvas, shown, chosen.metric, axis)
    y = TOP + 16.0
    canvas.text((COLUMN, y), "The fastest recipe that loses", 26, bold=True)
    for answer in answers(rows, [chosen])[1:]:
        timed = axis == "speedup"
        row = answer.by_clock if timed and answer.by_clock else answer.by_calls
        gain = short_speedup(row["speed"], row["batch"]) if timed else short(row["speed"][axis])
        words = f"times at batch {row['batch']}" if timed else "tokens per call"
        canvas.text((COLUMN, y + 56), f"at most {answer.allowed} of {chosen.metric}", 22, "soft")
        canvas.text((COLUMN, y + 92), _cut(row["recipe"], 30), 30, bold=True)
        canvas.text((COLUMN, y + 124), f"{gain} {words}", 22)
        y += 132
    for i, run in enumerate(runs[:3]):
        canvas.text((60, 886 - 28 * (min(len(runs), 3) - 1 - i)), _cut(_origin(run), 150), 20, "soft")
    return canvas


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _origin(run: ReportRun) -> str:
    config, environment = run.record["config"], run.record["environment"]
    prompts, seeds = len(config["prompts"]), len(config["seeds"])
    sizes = f"{prompts:,} prompt{'s' if prompts > 1 else ''} x {seeds} seed{'s' if seeds > 1 else ''}"
    where = environment.get("device") or config["device"]
    held = f"batch {config['batch']}, {where}, mmspec {environment.get('mmspec') or '?'}"
    rule = "95 % intervals, widened for the choice among all relaxed recipes"
    return f"{run.name + ': ' if run.name else ''}{sizes}, {held}; {rule}"


def _chart(canvas: Canvas, rows: Sequence[Record], metric: str, axis: str) -> None:
    points = [point(row, axis, metric) for row in rows]
    xs, ys = ticks([v for p in points for v in p.x]), ticks([v for p in points for v in p.y])

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (RIGHT - LEFT),
            BOTTOM - (y - ys[0]) / (ys[-1] - ys[0]) * (BOTTOM - TOP),
        )

    for x in xs:
        canvas.line([at(x, ys[0]), at(x, ys[-1])], "line", 1.5)
        canvas.text((at(x, ys[0])[0], BOTTOM + 30), f"{x:g}", 20, "soft", "middle")
    for y in ys:
        canvas.line([at(xs[0], y), at(xs[-1], y)], "line", 1.5)
        canvas.text((LEFT - 14, at(xs[0], y)[1] + 7), tick_label(y), 20, "soft", "end")
    better = higher_is_better(metric)
    canvas.text(((LEFT + RIGHT) / 2, BOTTOM + 68), axis_label(axis, rows), 22, anchor="middle")
    canvas.text((LEFT - 70, TOP - 20), f"{metric} ({'higher' if better else 'lower'} is better)", 22)
    canvas.line([at(p.x[0], p.y[0]) for p in front(points, bool(better))], "soft", 2, dashed=True)
    families = list(dict.fromkeys(p.family for p in points))
    for p in sorted(points, key=lambda one: one.exact):
        _point(canvas, p, f"c{families.index(p.family) % len(COLORS)}", at)
    _names(canvas, points, families, at)


def _point(canvas: Canvas, p: Point, color: str, at: Any) -> None:
    x, y = p.x[0], p.y[0]
    canvas.line([at(p.x[1], y), at(p.x[2], y)], color, 2)
    canvas.line([at(x, p.y[1]), at(x, p.y[2])], color, 2)
    canvas.mark(at(x, y), color, 8, p.exact)


def _names(canvas: Canvas, points: Sequence[Point], families: Sequence[str], at: Any) -> None:
    """The name of each family, at its fastest point, or above or below it inside the chart where there is room."""
    taken: list[tuple[float, float, float]] = []  # left end, right end, height
    for i, family in enumerate(families):
        last = max((p for p in points if p.family == family), key=lambda p: p.x[0])
        x, y = at(last.x[0], last.y[0])
        left, right = x + 12, x + 12 + 11 * len(family)
        steps = (sign * 22 * step for step in range(30) for sign in (-1, 1))
        heights = [height for step in steps if TOP <= (height := y - 12 + step) <= BOTTOM] or [y - 12]
        free = (
            height
            for height in heights
            if not any(left < r and ll < right and abs(height - other) < 22 for ll, r, other in taken)
        )
        height = next(free, heights[0])
        taken.append((left, right, height))
        canvas.text((left, height), family, 20, f"c{i % len(COLORS)}", bold=True)
