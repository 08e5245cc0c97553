"""The report page: curves, tables and samples side by side, of one run or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from mmspec.files import replacing
from mmspec.metrics.evaluation.results import guarantee, short
from mmspec.metrics.registry import find_metric
from mmspec.metrics.report.chart import Point, chart
from mmspec.metrics.report.drafts import drafts
from mmspec.metrics.report.samples import samples
from mmspec.metrics.report.style import STYLE

FILE = "report.html"

Record = Mapping[str, Any]
PARTS = ("target", "drafter", "rule", "other")
AXES = {"tokens_per_call": "tokens per target call", "speedup": "wall-clock speed-up"}


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


def write_report(record: Record, folder: Path) -> Path:
    """Writes the self-contained page of a results folder and returns its path."""
    return write_page([ReportRun("", record, folder)], folder / FILE)


def write_page(runs: Sequence[ReportRun], path: Path) -> Path:
    """Writes the page of several runs and returns its path."""
    with replacing(path) as partial:
        partial.write_text(page(runs), encoding="utf-8")
    return path


def page(runs: Sequence[ReportRun]) -> str:
    """The page as HTML that is well-formed XML too; with several runs, recipes are prefixed with the name of theirs."""
    rows = [_named(row, run.name) for run in runs for row in run.record["rows"]]
    models = " and ".join(dict.fromkeys(Path(run.record["config"]["model"]).name for run in runs))
    head = f"<title>mmspec eval: {escape(models)}</title><style>{STYLE}</style>"
    view = '<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
    sections = [
        f"<header><h1>{escape(models)}: quality against speed</h1>",
        *(f"<p>{escape(_summary(run))}</p>" for run in runs),
        "</header>",
        _charts(rows, runs),
        "<h2>Recipes</h2>" + _table(rows),
        "".join(_differences(run) for run in runs),
        "<h2>Where the time goes</h2>" + _time(rows),
        drafts(rows),
        *(_head(run) + samples(run.record["config"], run.folder) for run in runs),
        *(_facts(run) for run in runs),
    ]
    return f'<!DOCTYPE html>\n<html lang="en"><head>{view}{head}</head><body>{"".join(sections)}</body></html>\n'


def _named(row: Record, run: str) -> Record:
    return {**row, "recipe": f"{run}: {row['recipe']}", "run": run} if run else {**row, "run": ""}


def _head(run: ReportRun) -> str:
    return f"<h2>{escape(run.name)}</h2>" if run.name else ""


def _summary(run: ReportRun) -> str:
    config = run.record["config"]
    sizes = [
        f"{len(config['prompts']):,} prompt{'s' if len(config['prompts']) > 1 else ''}",
        f"{len(config['seeds'])} seed{'s' if len(config['seeds']) > 1 else ''} each",
        f"{len(run.record['rows'])} recipes",
        f"{config['batch']} per call",
    ]
    where = "plain decoding with other seeds" if config["reference"] == "plain" else config["reference"]
    skipped = len(run.record["skipped"])
    lost = f" {skipped} file{'s were' if skipped > 1 else ' was'} left out." if skipped else ""
    return f"{run.name + ': ' if run.name else ''}{', '.join(sizes)}. Distances are measured to {where}.{lost}"


def _metrics(runs: Sequence[ReportRun]) -> list[str]:
    """The metrics that every run has."""
    return [n for n in runs[0].record["rows"][0]["quality"] if all(n in r.record["rows"][0]["quality"] for r in runs)]


def _charts(rows: Sequence[Record], runs: Sequence[ReportRun]) -> str:
    """A chart per metric and axis of speed; recipes without a speed-up are omitted."""
    timed = [row for row in rows if row["speed"]["speedup"] is not None]
    switches, panels = [], []
    for i, (axis, x_label) in enumerate(AXES.items()):
        checked = ' checked="checked"' if i == 0 else ""
        switches.append(
            f'<input type="radio" name="axis" id="by-{axis}"{checked}/><label for="by-{axis}">{x_label}</label>'
        )
        figures = []
        for name in _metrics(runs):
            better = find_metric(name).higher_is_better
            if better is None or not timed:
                continue
            points = [_point(row, axis, name) for row in timed]
            figures.append(chart(points, f"{name} ({'higher' if better else 'lower'} is better)", better, x_label))
        panels.append(f'<div class="charts {axis}">{"".join(figures)}</div>')
    notes = [
        "Bars are 95 % bootstrap intervals over prompts and seeds. Diamonds keep the model's distribution, circles do "
        "not; the dashed line joins the recipes that no other beats in both speed and quality. Hover over a point for "
        "its numbers."
    ]
    sizes = {row["quality"][name]["n"] for row in rows for name in _metrics(runs)}
    if len(sizes) > 1:
        notes.append(f"Distances of different numbers of samples ({_listed(sizes)}) must not be compared.")
    return (
        f"<h2>Quality against speed</h2><p>{escape(' '.join(notes))}</p>"
        f'<div class="switch">{"".join(switches)}{"".join(panels)}</div>'
    )


def _listed(sizes: set[int]) -> str:
    return ", ".join(f"{size:,}" for size in sorted(sizes))


def _point(row: Record, axis: str, metric: str) -> Point:
    recipe = row["recipe"].removeprefix(f"{row['run']}: ")
    name, _, knobs = recipe.partition(":")
    family = f"{row['run']}: {name}" if row["run"] else name
    mark = ",".join(setting.partition("=")[2] for setting in knobs.split(",")) if knobs else ""
    return Point(row["recipe"], family, _span(row["speed"][axis]), _span(row["quality"][metric]), row["exact"], mark)


def _table(rows: Sequence[Record]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row["quality"]))
    audio = any(row["speed"]["real_time"] is not None for row in rows)
    heads = ["recipe", "exact?", "tokens / call", "NFE", "speed-up", "p50 s", "p95 s", "first s"]
    heads += [*(["real time"] if audio else []), "peak GB", "TV bound", *names]
    lines = []
    for row in rows:
        speed = row["speed"]
        cells = [_marked(speed["tokens_per_call"]), f"{speed['nfe']:.1f}", _marked(speed["speedup"])]
        cells += [f"{speed[key]:.3f}" for key in ("p50", "p95", "first")]
        cells += ["-" if speed["real_time"] is None else f"{speed['real_time']:.2f}"] if audio else []
        cells += [f"{speed['peak_memory'] / 1e9:.2f}", "-" if row["exact"] else f"{speed['tv_bound']:.4f}"]
        cells += [_marked(row["quality"].get(name)) for name in names]
        kind = "text bad" if row["exact"] and not row["gate"] else "text"
        first = f'<td>{escape(row["recipe"])}</td><td class="{kind}">{escape(guarantee(row))}</td>'
        lines.append(f"<tr>{first}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return _grid(heads, lines)


def _differences(run: ReportRun) -> str:
    rows = run.record["rows"]
    names = list(rows[0]["quality"])
    lines = []
    for row in rows[1:]:
        cells = [_difference(name, row["quality"][name]["difference"]) for name in names]
        lines.append(f"<tr><td>{escape(row['recipe'])}</td>{''.join(cells)}</tr>")
    title = f"{run.name}: difference" if run.name else "Difference"
    note = "Paired by prompt and seed. Colored where the interval does not contain 0: red is worse, green is better."
    return (
        f"<h2>{escape(title)} from plain decoding</h2><p>{note}</p>{_grid(['recipe', *names], lines)}" if lines else ""
    )


def _difference(metric: str, interval: Record | None) -> str:
    better, kind = find_metric(metric).higher_is_better, ""
    if interval is not None and better is not None and (interval["low"] > 0 or interval["high"] < 0):
        kind = ' class="good"' if (interval["low"] > 0) == better else ' class="bad"'
    return f"<td{kind}>{_marked(interval)}</td>"


def _time(rows: Sequence[Record]) -> str:
    """A bar per recipe: the seconds per sample by part; the rest is encoding the prompt and decoding the tokens."""
    longest = max(row["speed"]["seconds"] for row in rows)
    lines = []
    for row in rows:
        speed = row["speed"]
        pieces = {part: speed["parts"].get(part, 0.0) for part in PARTS}
        pieces["rest"] = max(speed["seconds"] - sum(pieces.values()), 0.0)
        spans = "".join(
            f'<i class="{part}" style="width:{100 * seconds / longest:.2f}%" title="{part}: {seconds:.3f} s"></i>'
            for part, seconds in pieces.items()
        )
        lines.append(
            f'<div>{escape(row["recipe"])}</div><div class="time">{spans}<b>{speed["seconds"]:.3f} s</b></div>'
        )
    legend = "".join(f'<span><i class="{part}"></i>{part}</span>' for part in (*PARTS, "rest"))
    note = "Seconds per sample; <i>rest</i> is encoding the prompt and decoding the tokens to an image or audio."
    return f'<p>{note}</p><div class="legend">{legend}</div><div class="times">{"".join(lines)}</div>'


def _facts(run: ReportRun) -> str:
    config, environment = run.record["config"], run.record["environment"]
    lists = (("Configuration", {k: v for k, v in config.items() if k != "prompts"}), ("Environment", environment))
    return _head(run) + "".join(f"<h2>{title}</h2>{_definitions(values)}" for title, values in lists)


def _grid(heads: Sequence[str], lines: Sequence[str]) -> str:
    kinds = ["text" if name in ("recipe", "exact?") else "" for name in heads]
    cells = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(heads, kinds, strict=True))
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _definitions(values: Record) -> str:
    known = {key: value for key, value in values.items() if value not in (None, "")}
    shown = {key: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for key, v in known.items()}
    return f"<dl>{''.join(f'<dt>{escape(key)}</dt><dd>{escape(text)}</dd>' for key, text in shown.items())}</dl>"


def _marked(interval: Record | None) -> str:
    value, _, ends = short(interval).partition(" ")
    return f"{value} <small>{ends}</small>" if ends else value


def _span(interval: Record) -> tuple[float, float, float]:
    return interval["value"], interval["low"], interval["high"]
