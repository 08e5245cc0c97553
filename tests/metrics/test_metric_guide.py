"""docs/adding-a-metric.md, followed to the letter by a package from outside."""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_pipe import Pipe, open_gate
from guides import make_files
from PIL import Image

import mmspec
from mmspec import registry
from mmspec.cli.app import main
from mmspec.metrics.evaluation.journal import Journal
from mmspec.metrics.extractors.clip import ClipExtractor

RELAXED = "lantern:delta=0.9"


@pytest.fixture
def site(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as pip leaves it, on the path: the module of the guide, its weights, and its entry point."""
    guide = (root / "docs" / "adding-a-metric.md").read_text()
    (module,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    ((section, line),) = re.findall(r'\[project.entry-points."(.*?)"\]\n(.*?)\n```', guide, re.DOTALL)
    (tmp_path / "aesthetic_score.py").write_text(module)
    make_files("adding-a-metric.md", tmp_path)
    installed = tmp_path / "aesthetic_score-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: aesthetic-score\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[{section}]\n{line.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.installed.cache_clear()
    yield tmp_path
    registry.installed.cache_clear()
    sys.modules.pop("aesthetic_score", None)


@pytest.fixture
def results(site: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an evaluation with the metric of the guide."""
    pipe = Pipe()
    monkeypatch.setattr(mmspec, "load", lambda model, device, dtype=None: pipe, raising=False)
    open_gate(monkeypatch)
    monkeypatch.setattr(time, "perf_counter", lambda: pipe.now)
    size = ["--recipes", f"scd,{RELAXED}", "--limit", "3", "--seeds", "0,1"]
    assert main(["eval", "-o", str(site / "results"), *size, "--metrics", "aesthetic,clip", *weights(root)]) == 0
    return site / "results"


def weights(root: Path) -> list[str]:
    return ["--clip", str(root / "examples" / "quality_vs_speed" / "clip")]


def test_a_metric_from_outside_is_evaluated(
    capsys: pytest.CaptureFixture[str], results: Path, site: Path, root: Path
) -> None:
    assert capsys.readouterr().out.splitlines()[0].split("|")[-3].strip() == "aesthetic"
    record: dict[str, Any] = json.loads((results / "results.json").read_text())
    rows = {row["recipe"]: row["quality"]["aesthetic"] for row in record["rows"]}
    extractor = ClipExtractor(weights(root)[1])
    with np.load(site / "aesthetic.npz") as file:
        weight, bias = file["weight"], file["bias"]
    for recipe, quality in rows.items():
        # The same score by another formula, on the files of the evaluation.
        images = [Image.open(results / s.file) for s in Journal(results).read().values() if s.recipe == recipe]
        x = extractor(np.stack([np.asarray(image) for image in images]))
        scores = [sum(a * b for a, b in zip(row, weight, strict=True)) / np.sqrt((row * row).sum()) + bias for row in x]
        assert len(images) == quality["n"] == 6
        assert quality["value"] == pytest.approx(np.mean(scores), abs=1e-6)
        assert quality["low"] < quality["value"] < quality["high"]
        assert quality["extractor"] == f"clip-{extractor.fingerprint}"
    difference = rows[RELAXED]["difference"]
    assert difference["value"] == pytest.approx(rows[RELAXED]["value"] - rows["plain"]["value"])
    assert difference["low"] < difference["value"] < difference["high"]


def test_a_metric_from_outside_is_in_the_csv_and_the_report(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads((results / "results.json").read_text())["rows"]
    with (results / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    for line, row in zip(lines, rows, strict=True):
        assert float(line["aesthetic_low"]) == row["quality"]["aesthetic"]["low"]
    page = (results / "report.html").read_text()
    assert "aesthetic (higher is better)" in page
    capsys.readouterr()
    assert main(["report", str(results)]) == 0
    assert (results / "report.html").read_text() == page


def test_a_metric_from_outside_measures_folders(results: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads((results / "results.json").read_text())["rows"]
    samples = Journal(results).read().values()
    folders = [str((results / next(s.file for s in samples if s.recipe == row["recipe"])).parent) for row in rows]
    capsys.readouterr()
    assert main(["measure", *folders, "--metrics", "aesthetic", *weights(root), "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    for quality, row in zip(measured["quality"], rows, strict=True):
        assert quality["aesthetic"]["value"] == pytest.approx(row["quality"]["aesthetic"]["value"], abs=1e-6)
