"""The page: what was measured, as curves, a table and pictures side by side."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from mmspec.files import replacing
from mmspec.metrics.evaluation.journal import image_path
from mmspec.metrics.evaluation.quality import read_metric
from mmspec.metrics.evaluation.results import law, short
from mmspec.metrics.report.chart import Point, chart
from mmspec.metrics.report.style import STYLE

FILE = "report.html"
SHOWN = 8  # prompts whose pictures are shown
SIDE = 192  # px, larger pictures are shown smaller

Record = Mapping[str, Any]


def write_report(record: Record, folder: Path) -> Path:
    """Writes the page of a results folder and returns its path; nothing it shows lies outside of it."""
    path = folder / FILE
    with replacing(path) as partial:
        partial.write_text(page(record, folder), encoding="utf-8")
    return path


def page(record: Record, folder: Path) -> str:
    """The page as HTML that is well-formed XML too."""
    config, rows = record["config"], record["rows"]
    size = f"{len(config['prompts'])} prompts, {len(config['seeds'])} seeds each, {len(rows)} recipes"
    head = f"<title>mmspec eval: {escape(config['model'])}</title><style>{escape(STYLE, quote=False)}</style>"
    view = '<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
    sections = [
        f"<h1>{escape(config['model'])}: quality against speed</h1><p>{escape(size)}. Brackets and bars are 95 % "
        "bootstrap intervals over prompts and seeds; a difference is paired with plain decoding of the same ones.</p>",
        _charts(rows, config),
        "<h2>Recipes</h2>" + _table(rows),
        _differences(rows),
        _samples(config, folder),
        "<h2>Configuration</h2>" + _facts({k: v for k, v in config.items() if k != "prompts" and v is not None}),
        "<h2>Environment</h2>" + _facts({k: v for k, v in record["environment"].items() if v is not None}),
    ]
    return f'<!DOCTYPE html>\n<html lang="en"><head>{view}{head}</head><body>{"".join(sections)}</body></html>\n'


def _charts(rows: Sequence[Record], config: Record) -> str:
    """A chart per metric; a recipe without a speed-up has no place in it."""
    timed = [row for row in rows if row["speed"]["speedup"] is not None]
    drawn = []
    for name in rows[0]["quality"]:
        metric = read_metric(name, {key: "-" for key in ("inception", "clip", "dinov2")})
        points = [
            Point(row["recipe"], row["recipe"].partition(":")[0], _span(row["speed"]["speedup"]), _span(found))
            for row in timed
            if (found := row["quality"][name])
        ]
        if points and metric.higher_is_better is not None:
            better = "higher" if metric.higher_is_better else "lower"
            drawn.append(chart(points, f"{name} ({better} is better)", metric.higher_is_better))
    reference = "plain decoding by other seeds" if config["reference"] == "plain" else config["reference"]
    note = f"Distances are measured to {reference}. The dashed line joins the recipes that none beats in both."
    return f'<h2>Quality against speed</h2><p>{escape(note)}</p><div class="charts">{"".join(drawn)}</div>'


def _table(rows: Sequence[Record]) -> str:
    names = list(rows[0]["quality"])
    heads = ["recipe", "law", "tokens/call", "NFE", "speed-up", "p50 s", "p95 s", "peak GB", "TV bound", *names]
    lines = []
    for row in rows:
        speed = row["speed"]
        cells = [f"{speed['tokens_per_call']:.2f}", f"{speed['nfe']:.1f}", _marked(speed["speedup"])]
        cells += [f"{speed['p50']:.3f}", f"{speed['p95']:.3f}", f"{speed['peak_memory'] / 1e9:.2f}"]
        cells += ["-" if row["exact"] else f"{speed['tv_bound']:.4f}"]
        cells += [_marked(row["quality"][name]) for name in names]
        kind = "text bad" if row["exact"] and not row["gate"] else "text"
        first = f'<td>{escape(row["recipe"])}</td><td class="{kind}">{escape(law(row))}</td>'
        lines.append(f"<tr>{first}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return _grid(heads, lines)


def _differences(rows: Sequence[Record]) -> str:
    names = list(rows[0]["quality"])
    lines = []
    for row in rows[1:]:
        cells = [_marked(row["quality"][name]["difference"]) for name in names]
        lines.append(f"<tr><td>{escape(row['recipe'])}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return "<h2>Difference from plain decoding</h2>" + _grid(["recipe", *names], lines) if lines else ""


def _samples(config: Record, folder: Path) -> str:
    """The first prompts under the first seed, recipe by recipe."""
    recipes, seed = config["recipes"], config["seeds"][0]
    lines = []
    for prompt in config["prompts"][:SHOWN]:
        cells = [_picture(folder / image_path(recipe, prompt, seed), f"{recipe}: {prompt}") for recipe in recipes]
        lines.append(f"<tr><th>{escape(prompt)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    heads = "".join(f"<th>{escape(name)}</th>" for name in ["", *recipes])
    table = f'<table class="samples"><thead><tr>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<h2>Side by side, seed {seed}</h2><div class="scroll">{table}</div>'


def _picture(path: Path, description: str) -> str:
    if not path.is_file():
        return "-"
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    small.save(data, format="PNG", optimize=True)
    code = base64.b64encode(data.getvalue()).decode()
    return f'<img alt="{escape(description)}" src="data:image/png;base64,{code}"/>'


def _grid(heads: Sequence[str], lines: Sequence[str]) -> str:
    kinds = ["text" if name in ("recipe", "law") else "" for name in heads]
    cells = "".join(f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(heads, kinds, strict=True))
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _facts(values: Record) -> str:
    shown = {key: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for key, v in values.items()}
    return f"<dl>{''.join(f'<dt>{escape(key)}</dt><dd>{escape(text)}</dd>' for key, text in shown.items())}</dl>"


def _marked(interval: Record | None) -> str:
    value, _, ends = short(interval).partition(" ")
    return f"{value} <small>{ends}</small>" if ends else value


def _span(interval: Record) -> tuple[float, float, float]:
    return interval["value"], interval["low"], interval["high"]
