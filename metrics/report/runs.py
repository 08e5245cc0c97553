"""Several runs on one page: what differs between them, and what that did to the same recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.metrics.comparisons import compare_all
from mmspec.metrics.report.differences import verdict, would_see
from mmspec.metrics.report.grid import grid, interval_cell
from mmspec.metrics.report.markup import Element

Record = Mapping[str, Any]
_LISTS = ("prompts", "recipes", "seeds", "metrics")  # shown by their number


@dataclass(frozen=True)
class ReportRun:
    """The results of one evaluation on a page.

    Attributes:
        name: Distinguishes it from other runs on the page; "" for the only one.
        record: Its results.json.
        folder: Its results folder.
    """

    name: str
    record: Record
    folder: Path


def stopped_after(run: ReportRun) -> str:
    """That a run was stopped, and what its results are of; "" if it has ended."""
    if not (planned := run.record.get("planned_prompts")):
        return ""
    finished = len(run.record["config"]["prompts"])
    return f"{run.name + ': ' if run.name else ''}Stopped after {finished:,} of {planned:,} prompts: results of these."


def between_runs(runs: Sequence[ReportRun]) -> list[Element]:
    """Settings that differ, the same recipes compared with the first run, and speed by temperature and guidance."""
    if len(runs) < 2:
        return []
    return [Element("h2", "Between the runs", id="runs"), *_settings(runs), *_changes(runs), *_by_sampling(runs)]


def _settings(runs: Sequence[ReportRun]) -> list[Element]:
    """Configuration and environment where they differ."""
    flat = [{**run.record["environment"], **run.record["config"]} for run in runs]
    known = dict.fromkeys(key for one in flat for key in one)
    keys = [key for key in known if len({_text(one, key) for one in flat}) > 1]
    if not keys:
        return [Element("p", "Configuration and environment are the same in all runs.")]
    lines = [
        Element("tr", Element("th", key, scope="row"), (Element("td", _shown(one, key), class_="text") for one in flat))
        for key in keys
    ]
    names = [run.name for run in runs]
    return [grid(["setting", *names], lines, "Settings that differ between the runs", ("setting", *names))]


def _text(settings: Record, key: str) -> str:
    return str(settings.get(key))


def _shown(settings: Record, key: str) -> str:
    value = settings.get(key)
    if key in _LISTS and isinstance(value, list):
        return f"{len(value):,} {key}"
    return "-" if value is None else str(value)


def _changes(runs: Sequence[ReportRun]) -> list[Element]:
    """What the later runs have in other quantity than the first, recipe by recipe."""
    first, cells = runs[0], []
    base = {row["recipe"]: row for row in first.record["rows"]}
    for run in runs[1:]:
        for row in run.record["rows"]:
            if row["recipe"] not in base:
                continue
            before = base[row["recipe"]]
            found = {"tokens / call": _minus(row["speed"]["tokens_per_call"], before["speed"]["tokens_per_call"])}
            for name, quality in row["quality"].items():
                old = before["quality"].get(name)
                if old is not None and (old["n"], old["extractor"]) == (quality["n"], quality["extractor"]):
                    found[name] = _minus(quality, old)
            cells.append((f"{run.name}: {row['recipe']}", found))
    family = [(label, name) for label, found in cells for name in found]
    if not family:
        return []
    verdicts = dict(zip(family, compare_all([found[name] for _, found in cells for name in found]), strict=True))
    names = list(dict.fromkeys(name for _, found in cells for name in found))
    lines = [
        Element(
            "tr",
            Element("th", label, scope="row"),
            (_change(name, found.get(name), verdicts.get((label, name))) for name in names),
        )
        for label, found in cells
    ]
    return [
        Element("h3", f"The same recipes, minus {first.name}"),
        Element(
            "p",
            "Not paired: the intervals of both runs add up. Named are differences that remain after Holm's correction "
            f"for the {len(family)} comparisons of this table. Metrics of other sizes or extractors are left out.",
        ),
        grid(["recipe", *names], lines, f"The same recipes, minus {first.name}"),
    ]


def _minus(a: Record, b: Record) -> dict[str, float]:
    """The difference of two independent quantities; each side of its interval adds up in squares."""
    value = a["value"] - b["value"]
    down = ((a["value"] - a["low"]) ** 2 + (b["high"] - b["value"]) ** 2) ** 0.5
    up = ((a["high"] - a["value"]) ** 2 + (b["value"] - b["low"]) ** 2) ** 0.5
    return {"value": value, "low": value - down, "high": value + up}


def _change(name: str, difference: Record | None, comparison: Any) -> Element:
    if difference is None:
        return interval_cell(None)
    said = verdict(name, difference, comparison)
    kind = {"worse": "bad", "better": "good"}.get(said)
    return interval_cell(difference, kind, [said or would_see(name, comparison)])


def _by_sampling(runs: Sequence[ReportRun]) -> list[Element]:
    """Tokens per call and acceptance by temperature and guidance; empty if neither differs."""
    where = {run.name: (run.record["config"]["temperature"], run.record["config"]["guidance_scale"]) for run in runs}
    if len(set(where.values())) < 2:
        return []
    ordered = sorted(runs, key=lambda run: tuple(-1.0 if v is None else float(v) for v in where[run.name]))
    recipes = list(dict.fromkeys(row["recipe"] for run in ordered for row in run.record["rows"]))
    settings = [f"T = {_set(where[run.name][0])}, guidance {_set(where[run.name][1])}" for run in ordered]
    heads = ["recipe", *(f"{setting} ({run.name})" for setting, run in zip(settings, ordered, strict=True))]
    lines = []
    for recipe in recipes:
        cells = []
        for run in ordered:
            row = next((row for row in run.record["rows"] if row["recipe"] == recipe), None)
            if row is None:
                cells.append(interval_cell(None))
                continue
            rate = next((rate for rate in row["speed"]["acceptance"] if rate is not None), None)
            note = "" if rate is None else f"{rate:.0%} of first drafts"
            cells.append(interval_cell(row["speed"]["tokens_per_call"], None, [note]))
        lines.append(Element("tr", Element("th", recipe, scope="row"), cells))
    return [
        Element("h3", "Acceptance by temperature and guidance"),
        Element("p", "Tokens per target call, and how often the first draft of a window was accepted."),
        grid(heads, lines, "Acceptance by temperature and guidance"),
    ]


def _set(value: float | None) -> str:
    return "as the model" if value is None else f"{value:g}"
