"""The results of an evaluation as results.json, results.csv and a table for the terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmspec import limits
from mmspec.errors import ArgumentError
from mmspec.files.folders import open_inside, replacing_inside
from mmspec.metrics.evaluation.config import EvalConfig
from mmspec.metrics.evaluation.evaluate import EvaluationResult
from mmspec.metrics.evaluation.schema import SCHEMA_VERSION, read_record

FILE, CSV_FILE = "results.json", "results.csv"

Record = dict[str, Any]


def record_of(
    config: EvalConfig,
    result: EvaluationResult,
    environment: Mapping[str, Any],
    planned_prompts: int | None = None,
) -> Record:
    """The results as one JSON object, with the keys of `mmspec.metrics.evaluation.schema.Results`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "config": config.to_dict(),
        "environment": dict(environment),
        "skipped": result.skipped,
        "rows": [asdict(row) for row in result.rows],
        "planned_prompts": planned_prompts,
    }


def write_results(record: Record, folder: Path) -> None:
    """Writes results.json and results.csv, each atomically, next to the samples."""
    with replacing_inside(folder, FILE) as partial:
        partial.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    write_csv(record, folder)


def write_csv(record: Record, folder: Path) -> None:
    """Writes results.csv atomically."""
    with replacing_inside(folder, CSV_FILE) as partial:
        partial.write_text(as_csv(record["rows"], record["config"]["batch"]), encoding="utf-8")


def read_results(folder: Path) -> Record:
    """The results in a folder, checked against their schema.

    Raises:
        ArgumentError: If the folder holds none, or the schema version differs.
    """
    path = folder / FILE
    try:
        with open_inside(path) as file:
            content = file.read(limits.FILE_BYTES.value + 1)
    except OSError as error:
        raise ArgumentError(f"'{folder}' holds no results of `mmspec eval` that can be read: {error}") from error
    return read_record(content, f"'{path}'")


def as_csv(rows: Sequence[Mapping[str, Any]], batch: int) -> str:
    """One line per recipe; missing values are empty, such as the speed-up of a recipe whose check failed.

    Args:
        rows: The recipes.
        batch: Samples per call; where one call made all of them, the speed-up has no ends.
    """
    out = io.StringIO()
    lines = [_flat(row, batch) for row in rows]
    writer = csv.DictWriter(out, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(row: Mapping[str, Any], batch: int) -> dict[str, Any]:
    speed = row["speed"]
    flat = {key: row[key] for key in ("recipe", "exact", "gate")}
    flat |= {key: speed[key] for key in ("samples", "nfe")}
    flat |= _ends("tokens_per_call", speed["tokens_per_call"]) | _ends("speedup", speed["speedup"])
    if timed_once(speed, batch):
        flat |= {"speedup_low": None, "speedup_high": None}
    flat |= {"seconds": speed["seconds"]} | {f"{key}_seconds": speed[key] for key in ("p50", "p95", "first")}
    flat |= {f"{part}_seconds": seconds for part, seconds in speed["parts"].items()}
    flat |= {key: speed[key] for key in ("real_time", "peak_memory", "tv_bound")}
    for name, quality in row["quality"].items():
        flat |= _ends(name, quality) | {f"{name}_n": quality["n"], f"{name}_extractor": quality["extractor"]}
        flat |= _ends(f"{name}_difference", quality["difference"])
    return flat


def _ends(name: str, interval: Mapping[str, Any] | None) -> dict[str, Any]:
    keys = {name: "value", f"{name}_low": "low", f"{name}_high": "high"}
    return {column: None if interval is None else interval[key] for column, key in keys.items()}


def table(rows: Sequence[Mapping[str, Any]], batch: int) -> str:
    """The rows as Markdown, columns aligned, every interval in brackets; `batch` is the samples per call."""
    names = list(rows[0]["quality"])
    lines = [["recipe", "exact?", "tokens/call", "speed-up", "p50 s", "TV bound", *names]]
    for row in rows:
        speed = row["speed"]
        cells = [f"{speed['tokens_per_call']['value']:.2f}", short_speedup(speed, batch), f"{speed['p50']:.3f}"]
        bound = "-" if row["exact"] else f"{speed['tv_bound']:.3f}"
        lines.append([row["recipe"], guarantee(row), *cells, bound, *(short(row["quality"][name]) for name in names)])
    return aligned(lines, 2)


def aligned(lines: Sequence[Sequence[str]], texts: int) -> str:
    """Formats cells as a Markdown table with a rule under the first line.

    Args:
        lines: The cells, row by row; the first row is the header.
        texts: Number of columns, from the left, that are aligned left; the others are aligned right.
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rule = ["-" * width if i < texts else f"{'-' * (width - 1)}:" for i, width in enumerate(widths)]
    cells = [
        [
            cell.ljust(width) if i < texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in [lines[0], rule, *lines[1:]]
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def guarantee(row: Mapping[str, Any]) -> str:
    """Whether a recipe keeps the target distribution: "exact", "relaxed", "CHECK FAILED", or "not checked yet"."""
    if not row["exact"]:
        return "relaxed"
    return "not checked yet" if row["gate"] is None else "exact" if row["gate"] else "CHECK FAILED"


def timed_once(speed: Mapping[str, Any], batch: int) -> bool:
    """Whether one call made all samples of a recipe: its seconds were measured once, and there is no interval."""
    return bool(speed["samples"] <= batch)


def short_speedup(speed: Mapping[str, Any], batch: int) -> str:
    """Formats a speed-up as `short`, and as `1.23 (one call)` where there is no interval."""
    speedup = speed["speedup"]
    if speedup is None or not timed_once(speed, batch):
        return short(speedup)
    return f"{speedup['value']:.2f} (one call)"


def short(interval: Mapping[str, Any] | None) -> str:
    """Formats an interval as `1.23 [1.20, 1.26]`, tiny ones as `2.5e-07 [...]`, None as "-".

    The number of digits is the smallest that distinguishes the ends.
    """
    if interval is None:
        return "-"
    width = interval["high"] - interval["low"]
    nothing = width <= 1e-9 * max(1.0, abs(interval["value"]))
    digits = 3 if nothing else next((d for d in (2, 3, 4, 5) if width * 10**d >= 5), 0)
    if not digits:
        return f"{interval['value']:.3g} [{interval['low']:.3g}, {interval['high']:.3g}]"
    # "z": an end that rounds to zero has no sign.
    return f"{interval['value']:z.{digits}f} [{interval['low']:z.{digits}f}, {interval['high']:z.{digits}f}]"
