"""The report page: curves, tables and samples side by side, of one run or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.errors import MMSpecError
from mmspec.files import replacing
from mmspec.metrics.evaluation.results import guarantee, short
from mmspec.metrics.registry import find_metric
from mmspec.metrics.report.chart import Point, chart
from mmspec.metrics.report.drafts import drafts
from mmspec.metrics.report.markup import Children, Element, document
from mmspec.metrics.report.samples import samples
from mmspec.metrics.report.style import STYLE

FILE = "report.html"

Record = Mapping[str, Any]
BAR = 1000  # units of length of the longest bar
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
    body: list[Children] = [
        Element(
            "header",
            Element("h1", f"{models}: quality against speed"),
            [Element("p", _summary(run)) for run in runs],
        ),
        _charts(rows, runs),
        [Element("h2", "Recipes"), _table(rows)],
        [_differences(run) for run in runs],
        _time(rows),
        drafts(rows),
        [[_head(run), samples(run.record["config"], run.folder)] for run in runs],
        [_facts(run) for run in runs],
    ]
    return document(f"mmspec eval: {models}", STYLE, body)


def _named(row: Record, run: str) -> Record:
    return {**row, "recipe": f"{run}: {row['recipe']}", "run": run} if run else {**row, "run": ""}


def _head(run: ReportRun) -> Element | None:
    return Element("h2", run.name) if run.name else None


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


def _higher_is_better(metric: str) -> bool | None:
    """As `Metric.higher_is_better`; None for a metric of a package that is not installed."""
    try:
        return find_metric(metric).higher_is_better
    except MMSpecError:
        return None


def _charts(rows: Sequence[Record], runs: Sequence[ReportRun]) -> list[Element]:
    """A chart per metric and axis of speed; recipes without a speed-up are omitted."""
    timed = [row for row in rows if row["speed"]["speedup"] is not None]
    switches, panels = [], []
    for i, (axis, x_label) in enumerate(AXES.items()):
        checked = "checked" if i == 0 else None
        switches.append(Element("input", type="radio", name="axis", id=f"by-{axis}", checked=checked))
        switches.append(Element("label", x_label, for_=f"by-{axis}"))
        figures = []
        for name in _metrics(runs):
            better = _higher_is_better(name)
            if better is None or not timed:
                continue
            points = [_point(row, axis, name) for row in timed]
            figures.append(chart(points, f"{name} ({'higher' if better else 'lower'} is better)", better, x_label))
        panels.append(Element("div", figures, class_=f"charts {axis}"))
    notes = [
        "Bars are 95 % bootstrap intervals over prompts and seeds. Diamonds keep the model's distribution, circles do "
        "not; the dashed line joins the recipes that no other beats in both speed and quality. Hover over a point for "
        "its numbers."
    ]
    sizes = {row["quality"][name]["n"] for row in rows for name in _metrics(runs)}
    if len(sizes) > 1:
        notes.append(f"Distances of different numbers of samples ({_listed(sizes)}) must not be compared.")
    return [
        Element("h2", "Quality against speed"),
        Element("p", " ".join(notes)),
        Element("div", switches, panels, class_="switch"),
    ]


def _listed(sizes: set[int]) -> str:
    return ", ".join(f"{size:,}" for size in sorted(sizes))


def _point(row: Record, axis: str, metric: str) -> Point:
    recipe = row["recipe"].removeprefix(f"{row['run']}: ")
    name, _, knobs = recipe.partition(":")
    family = f"{row['run']}: {name}" if row["run"] else name
    mark = ",".join(setting.partition("=")[2] for setting in knobs.split(",")) if knobs else ""
    return Point(row["recipe"], family, _span(row["speed"][axis]), _span(row["quality"][metric]), row["exact"], mark)


def _table(rows: Sequence[Record]) -> Element:
    names = list(dict.fromkeys(name for row in rows for name in row["quality"]))
    audio = any(row["speed"]["real_time"] is not None for row in rows)
    heads = ["recipe", "exact?", "tokens / call", "NFE", "speed-up", "p50 s", "p95 s", "first s"]
    heads += [*(["real time"] if audio else []), "peak GB", "TV bound", *names]
    lines = []
    for row in rows:
        speed = row["speed"]
        cells: list[Children] = [_marked(speed["tokens_per_call"]), f"{speed['nfe']:.1f}", _marked(speed["speedup"])]
        cells += [f"{speed[key]:.3f}" for key in ("p50", "p95", "first")]
        cells += ["-" if speed["real_time"] is None else f"{speed['real_time']:.2f}"] if audio else []
        cells += [f"{speed['peak_memory'] / 1e9:.2f}", "-" if row["exact"] else f"{speed['tv_bound']:.4f}"]
        cells += [_marked(row["quality"].get(name)) for name in names]
        kind = "text bad" if row["exact"] and not row["gate"] else "text"
        first = [Element("td", row["recipe"]), Element("td", guarantee(row), class_=kind)]
        lines.append(Element("tr", first, (Element("td", cell) for cell in cells)))
    return _grid(heads, lines)


def _differences(run: ReportRun) -> list[Element]:
    rows = run.record["rows"]
    names = list(rows[0]["quality"])
    lines = [
        Element(
            "tr",
            Element("td", row["recipe"]),
            (_difference(name, row["quality"][name]["difference"]) for name in names),
        )
        for row in rows[1:]
    ]
    if not lines:
        return []
    title = f"{run.name}: difference" if run.name else "Difference"
    note = "Paired by prompt and seed. Colored where the interval does not contain 0: red is worse, green is better."
    return [Element("h2", f"{title} from plain decoding"), Element("p", note), _grid(["recipe", *names], lines)]


def _difference(metric: str, interval: Record | None) -> Element:
    better, kind = _higher_is_better(metric), None
    if interval is not None and better is not None and (interval["low"] > 0 or interval["high"] < 0):
        kind = "good" if (interval["low"] > 0) == better else "bad"
    return Element("td", _marked(interval), class_=kind)


def _time(rows: Sequence[Record]) -> list[Element]:
    """A bar per recipe: the seconds per sample by part; the rest is encoding the prompt and decoding the tokens."""
    scale = BAR / max([row["speed"]["seconds"] for row in rows if row["speed"]["seconds"]], default=1)
    lines = []
    for row in rows:
        speed = row["speed"]
        pieces = {part: speed["parts"].get(part, 0.0) for part in PARTS}
        pieces["rest"] = max(speed["seconds"] - sum(pieces.values()), 0.0)
        rects, at = [], 0.0
        for part, seconds in pieces.items():
            title = Element("title", f"{part}: {seconds:.3f} s")
            size = {"x": f"{at:.2f}", "width": f"{seconds * scale:.2f}"}
            rects.append(Element("rect", title, class_=part, y=0, height=1, **size))
            at += seconds * scale
        svg = Element(
            "svg", rects, viewBox=f"0 0 {BAR} 1", preserveAspectRatio="none", role="img", aria_label="seconds"
        )
        total = Element("b", f"{speed['seconds']:.3f} s")
        lines += [Element("div", row["recipe"]), Element("div", svg, total, class_="time")]
    legend = [Element("span", Element("i", class_=part), part) for part in (*PARTS, "rest")]
    return [
        Element("h2", "Where the time goes"),
        Element(
            "p",
            "Seconds per sample; ",
            Element("i", "rest"),
            " is encoding the prompt and decoding the tokens to an image or audio.",
        ),
        Element("div", legend, class_="legend"),
        Element("div", lines, class_="times"),
    ]


def _facts(run: ReportRun) -> list[Element | None]:
    config, environment = run.record["config"], run.record["environment"]
    return [
        _head(run),
        Element("h2", "Configuration"),
        _definitions({key: value for key, value in config.items() if key != "prompts"}),
        Element("h2", "Environment"),
        _definitions(environment),
    ]


def _grid(heads: Sequence[str], lines: Sequence[Element]) -> Element:
    cells = [Element("th", name, class_="text" if name in ("recipe", "exact?") else None) for name in heads]
    table = Element("table", Element("thead", Element("tr", cells)), Element("tbody", lines))
    return Element("div", table, class_="scroll")


def _definitions(values: Record) -> Element:
    known = {key: value for key, value in values.items() if value not in (None, "")}
    shown = {key: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for key, v in known.items()}
    return Element("dl", ((Element("dt", key), Element("dd", text)) for key, text in shown.items()))


def _marked(interval: Record | None) -> list[Children]:
    value, _, ends = short(interval).partition(" ")
    return [f"{value} ", Element("small", ends)] if ends else [value]


def _span(interval: Record) -> tuple[float, float, float]:
    return interval["value"], interval["low"], interval["high"]
