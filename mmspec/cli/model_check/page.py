"""The page and the JSON object of a `ModelReport`."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmspec.cli.model_check.checks import OWN, ModelReport
from mmspec.files import replacing

SHOWN_IDS = 200


def cell(value: object) -> str:
    """Text of a user or of a model as one cell of a Markdown table: without markup, on one line."""
    text = html.escape(" ".join(str(value).split()), quote=False)
    for sign in "\\`*_[]|":
        text = text.replace(sign, f"&#{ord(sign)};")
    return text or "-"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *[[cell(value) for value in row] for row in rows]]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


def page(report: ModelReport) -> str:
    """The report as one Markdown page."""
    verdict = "passed" if report.passed else "FAILED"
    ids = ", ".join(map(str, report.prompt_ids[:SHOWN_IDS]))
    rest = f" and {len(report.prompt_ids) - SHOWN_IDS} more" if len(report.prompt_ids) > SHOWN_IDS else ""
    lines = [
        f"# mmspec check: {cell(report.model)}: {verdict}",
        "",
        *table(
            ["", ""],
            [("class", report.kind), ("prompt", report.prompt or "none"), ("prompt ids", (ids or "none") + rest)],
        ),
        "",
        *table(["", ""], list(report.facts.items())),
        "",
        "## Checks",
        "",
        *table(["check", "result", "figures"], [(c.name, c.status, c.detail) for c in report.checks]),
        "",
        "## Speed",
        "",
    ]
    if report.speeds:
        base = next(speed.seconds for speed in report.speeds)
        own = next((speed.seconds for speed in report.speeds if speed.name == OWN), None)
        head = ["", "target calls", "seconds", "over plain", *([] if own is None else ["over own generate"])]
        rows = []
        for speed in report.speeds:
            calls = "-" if speed.target_calls is None else str(speed.target_calls)
            row = [speed.name, calls, f"{speed.seconds:.3f}", f"{base / speed.seconds:.2f}x"]
            rows.append(row if own is None else [*row, f"{own / speed.seconds:.2f}x"])
        lines += [*table(head, rows), "", "One sampled row, median of the repetitions."]
    else:
        lines.append("Not measured: a check failed, or none was possible.")
    if report.refused:
        lines += ["", "## Recipes that this model does not run", ""]
        lines += table(["recipe", "reason"], list(report.refused.items()))
    return "\n".join(lines) + "\n"


def as_json(report: ModelReport) -> dict[str, Any]:
    """The report as a JSON object."""
    return {"schema": 1, "passed": report.passed, **asdict(report)}


def write_page(text: str, facts: Mapping[str, Any], output: Path | None, as_json: bool) -> None:
    """Writes a page to a file, and prints its path, the page or a JSON object.

    Args:
        text: The page.
        facts: The JSON object.
        output: The file; None writes none.
        as_json: Whether to print the JSON object.
    """
    if output is not None:
        with replacing(output) as partial:
            partial.write_text(text, encoding="utf-8")
    if as_json:
        print(json.dumps(facts))
    elif output is None:
        print(text, end="")
    else:
        print(output)
