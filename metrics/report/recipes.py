"""The table of recipes: speed, cost and quality of each, and what the slider reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.metrics.evaluation.results import guarantee, short, short_speedup, timed_once
from mmspec.metrics.report.choice import candidates, relaxed_candidates, worst_loss
from mmspec.metrics.report.grid import grid, interval_cell, key_of, name_cell, number_cell
from mmspec.metrics.report.markup import Element

Record = Mapping[str, Any]


def recipes_table(rows: Sequence[Record], metrics: Sequence[str]) -> Element:
    """A row per recipe.

    Args:
        rows: The recipes, each with its `batch`.
        metrics: Those that the slider offers, in its order.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["quality"]))
    audio = any(row["speed"]["real_time"] is not None for row in rows)
    batches = {row["batch"] for row in rows}
    held = f"speed-up at batch {min(batches)}" if len(batches) == 1 else "speed-up"
    heads = ["recipe", "exact?", "N", "tokens / call", "target calls", held, *(["batch"] if len(batches) > 1 else [])]
    heads += ["p50 s", "p95 s", "first s", *(["real time"] if audio else []), "peak GB", "TV bound", *names]
    lines = [_line(row, rows, names, metrics, audio, len(batches) > 1) for row in rows]
    return grid(heads, lines, "Recipes: speed and quality", ("recipe", "exact?"))


def _line(
    row: Record, rows: Sequence[Record], names: Sequence[str], metrics: Sequence[str], audio: bool, batches: bool
) -> Element:
    speed = row["speed"]
    status = guarantee(row)
    cells = [name_cell(row["recipe"]), Element("td", status, class_="text bad" if "FAILED" in status else "text")]
    cells += [number_cell(f"{speed['samples']:,}", speed["samples"]), interval_cell(speed["tokens_per_call"])]
    cells += [number_cell(f"{speed['nfe']:.1f}", speed["nfe"]), _speedup_cell(row)]
    cells += [number_cell(str(row["batch"]), row["batch"])] if batches else []
    cells += [number_cell(f"{speed[key]:.3f}", speed[key]) for key in ("p50", "p95", "first")]
    if audio:
        real = speed["real_time"]
        cells.append(number_cell("-" if real is None else f"{real:.2f}", real))
    cells.append(number_cell(f"{speed['peak_memory'] / 1e9:.2f}", speed["peak_memory"]))
    bound = None if row["exact"] else speed["tv_bound"]
    cells.append(number_cell("-" if bound is None else f"{bound:.4f}", bound))
    cells += [interval_cell(row["quality"].get(name)) for name in names]
    key = key_of(row["recipe"])
    return Element("tr", cells, id=f"recipe={key}", data_recipe=key, **_for_slider(row, rows, metrics))


def _speedup_cell(row: Record) -> Element:
    """The speed-up with its interval, or what there is instead of one."""
    speedup = row["speed"]["speedup"]
    if speedup is None or not timed_once(row["speed"], row["batch"]):
        return interval_cell(speedup)
    value, _, note = short_speedup(row["speed"], row["batch"]).partition(" ")
    return number_cell([value, " ", Element("small", note)], speedup["value"])


def _for_slider(row: Record, rows: Sequence[Record], metrics: Sequence[str]) -> dict[str, str]:
    """The attributes by which the slider chooses; none for a recipe that cannot be chosen."""
    if not any(row is one for one in candidates(rows)):
        return {}
    speed, together = row["speed"], relaxed_candidates(rows)
    gain, timed = short_speedup(speed, row["batch"]), speed["speedup"] is not None
    return {
        "data_worst": _losses(row, metrics, 1),
        "data_worst_together": _losses(row, metrics, together),
        "data_speedup": f"{speed['speedup']['value']:.10g}" if timed else "NaN",
        "data_speedup_text": f"{gain} times plain decoding's speed, at batch {row['batch']}" if timed else "",
        "data_tokens": f"{speed['tokens_per_call']['value']:.10g}",
        "data_tokens_text": f"{short(speed['tokens_per_call'])} tokens per target call",
    }


def _losses(row: Record, metrics: Sequence[str], comparisons: int) -> str:
    """The largest losses by metric, separated by spaces; NaN where there is no difference."""
    found = (worst_loss(row, metric, comparisons) for metric in metrics)
    return " ".join("NaN" if loss is None else f"{loss:.10g}" for loss in found)
