"""Tables as Markdown and LaTeX, and the image for a talk, from committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from mmspec.cli.app import main
from mmspec.errors import ArgumentError
from mmspec.metrics.report.runs import ReportRun
from mmspec.metrics.report.summary import BOTTOM, RIGHT, TOP, summary
from mmspec.metrics.report.tables import latex, markdown


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    (tmp_path / "results.json").write_bytes((root / "examples/quality_vs_speed/relaxed.json").read_bytes())
    return tmp_path


@pytest.fixture
def run(folder: Path) -> ReportRun:
    return ReportRun("", json.loads((folder / "results.json").read_text()), folder)


def test_markdown_tables_hold_every_recipe(run: ReportRun) -> None:
    text = markdown([run])
    tables = re.split(r"\n\n\*\*", text)
    assert len(tables) == 4
    for table, rows in zip(tables[1:], (20, 19, 8 * 4), strict=True):
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len(lines) == rows + 2 and len({line.count("|") for line in lines}) == 1
    assert re.search(r"lantern:delta=0.8 +\| +-0.12\* \[", text) and "for 152 of them" in text
    assert "300 prompts x 1 seeds, batch 25, temperature 1, guidance_scale 3, cpu, mmspec 0.1.0" in text


def test_latex_escapes_what_it_must(run: ReportRun) -> None:
    run.record["rows"][1]["recipe"] = r"50%_of{x}$\input"
    text = latex([run])
    assert r"50\%\_of\{x\}\$\textbackslash{}input" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {6, 8, 14}


def test_the_image_for_a_talk(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("svg", "png"):
        assert main(["report", str(folder), "--format", form, "--axis", "tokens_per_call"]) == 0
    assert capsys.readouterr().out.split() == [str(folder / "summary.svg"), str(folder / "summary.png")]
    tree = ElementTree.parse(folder / "summary.svg").getroot()
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"at most 1 point of attributes", "scd", "tokens per target call"} <= set(texts)
    assert not list(tree.iter("{http://www.w3.org/2000/svg}script"))
    with Image.open(folder / "summary.png") as image:
        assert image.size == (1600, 900) and len(image.getcolors(100_000) or ()) > 50


def test_results_without_speed_ups_have_tables_an_image_and_a_page(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((folder / "results.json").read_text())
    for row in record["rows"]:
        row["speed"]["speedup"] = None
    (folder / "results.json").write_text(json.dumps(record))
    assert main(["report", str(folder), "--format", "svg"]) == 0  # tokens per call are what there is
    texts = (folder / "summary.svg").read_text()
    assert "tokens per target call" in texts and "tokens per call" in texts and "speed-up" not in texts
    for form in ("md", "latex", "html"):
        assert main(["report", str(folder), "--format", form]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| attributes +\| 1 point +\| scd +\| [0-9.]+ \[[0-9., ]+\] \| +- \| +- \| +- \|", out)
    html = (folder / "report.html").read_text()
    assert html.count('data-speedup="NaN"') == 20 and 'data-tokens="NaN"' not in html
    assert main(["report", str(folder), "--format", "svg", "--axis", "speedup"]) == 2
    assert "--axis speedup: these results have no speed-up; use --axis tokens_per_call" in capsys.readouterr().err


def test_the_image_of_recipes_timed_in_one_call_shows_tokens_per_call(run: ReportRun) -> None:
    assert "wall-clock speed-up, batch 25" in summary([run]).svg()
    run.record["config"]["batch"] = 300  # one call made all samples
    assert "tokens per target call" in (svg := summary([run]).svg()) and "speed-up" not in svg
    assert "speed-up" in summary([run], axis="speedup").svg()


def test_names_of_families_stay_inside_the_chart(root: Path, tmp_path: Path) -> None:
    # Fourteen families, most of them at the upper edge: pushed upwards only, names covered the title.
    record = json.loads((root / "examples/scenes/curve.json").read_text())
    svg = ElementTree.fromstring(summary([ReportRun("", record, tmp_path)]).svg())
    texts = list(svg.iter("{http://www.w3.org/2000/svg}text"))
    heights = [
        float(text.attrib["y"])
        for text in texts
        if str(text.text).startswith("scd+") and float(text.attrib["x"]) < RIGHT
    ]
    assert len(heights) >= 9 and min(heights) >= TOP and max(heights) <= BOTTOM


def test_refusals(folder: Path, run: ReportRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder), "--format", "svg", "--metric", "atributes"]) == 2
    assert "attributes" in capsys.readouterr().err
    assert main(["report", str(folder), "--format", "svg", "-o", str(folder / "x.jpg")]) == 2
    assert "must end in .svg" in capsys.readouterr().err
    alone = {**run.record, "rows": run.record["rows"][:2]}
    with pytest.raises(ArgumentError, match="nothing to summarize"):
        summary([ReportRun("", alone, folder)])
