"""The report is one well-formed, self-contained file that shows all measurements."""

from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from mmspec.cli.app import main
from mmspec.metrics.evaluation.config import EvalConfig
from mmspec.metrics.evaluation.evaluate import EvaluationResult
from mmspec.metrics.evaluation.journal import sample_path
from mmspec.metrics.evaluation.results import record_of, write_results
from mmspec.metrics.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, chart, front
from mmspec.metrics.report.page import ReportRun, page

PROMPT = 'a "red" <circle> & more'
RECIPES = ("plain", "scd", "lantern:delta=0.2")


def interval(value: float, half: float = 0.1) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


@pytest.fixture
def record(tmp_path: Path) -> dict[str, Any]:
    """Results of three recipes, of which the second failed its check, with their images in `tmp_path`."""
    config = EvalConfig(
        "shapes", (PROMPT, "a green star"), RECIPES, (3, 4), ("fd@shapes", "attributes", "entropy"), dinov2="a<b"
    )
    for i, recipe in enumerate(RECIPES):
        path = tmp_path / sample_path(recipe, PROMPT, 3)
        path.parent.mkdir(parents=True)
        Image.new("RGB", (400, 300), (i * 100, 0, 0)).save(path)
    made = record_of(config, EvaluationResult([], []), {"mmspec": "1 & 2", "cuda": None})
    for i, recipe in enumerate(RECIPES):
        speedup = None if i == 1 else interval(1.0 + i, 0.05 * i)
        speed: dict[str, Any] = {
            "samples": 4, "nfe": 9.0, "tokens_per_call": interval(1.5 + i), "speedup": speedup, "seconds": 1.25,
            "p50": 1.0, "p95": 2.0, "first": 0.1, "parts": {"target": 1.0}, "real_time": None, "peak_memory": 10**9,
            "tv_bound": 0.02, "acceptance": [0.5, None] if i else [], "gains": [0, 1, 3] if i else [0, 4],
            "accepted_at": [0.0, 1.0, 1.0, 0.0] if i else [0.0] * 4, "grid": 2 if i == 1 else None,
        }  # fmt: skip
        quality = {
            name: {**interval(i + 0.5), "n": 4, "extractor": "x", "difference": interval(i) if i else None}
            for name in config.metrics
        }
        row = {"recipe": recipe, "exact": i < 2, "gate": [True, False, None][i], "speed": speed, "quality": quality}
        made["rows"].append(row)
    return made


def test_the_page_is_well_formed_and_self_contained(record: dict[str, Any], tmp_path: Path) -> None:
    text = page([ReportRun("", record, tmp_path)])
    tree = ElementTree.fromstring(text.partition("\n")[2])
    assert tree.tag == "html"
    addresses = [v for element in tree.iter() for k, v in element.attrib.items() if k in ("src", "href", "data")]
    assert addresses and all(address.startswith("data:image/png;base64,") for address in addresses)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script|<link", re.sub(r'src="[^"]*"', "", text))


def test_the_page_shows_images_side_by_side(record: dict[str, Any], tmp_path: Path) -> None:
    tree = ElementTree.fromstring(page([ReportRun("", record, tmp_path)]).partition("\n")[2])
    images = [image for image in tree.iter("img") if ": " in image.attrib["alt"]]
    assert [p.attrib["alt"] for p in images] == [f"{recipe}: {PROMPT}" for recipe in RECIPES]
    for i, image in enumerate(images):
        data = base64.b64decode(image.attrib["src"].partition(",")[2])
        with Image.open(io.BytesIO(data)) as shown:
            assert shown.size == (256, 192) and shown.getpixel((5, 5)) == (i * 100, 0, 0)


def test_the_page_shows_every_number(record: dict[str, Any], tmp_path: Path) -> None:
    tree = ElementTree.fromstring(page([ReportRun("", record, tmp_path)]).partition("\n")[2])
    cells = ["".join(cell.itertext()) for cell in tree.iter("td")]
    for text in ("plain", "CHECK FAILED", "relaxed", "0.0200", "2.50 [2.40, 2.60]", "2.00 [1.90, 2.10]", "1.000"):
        assert text in cells, text
    charts = [figure for figure in tree.iter("figure")]
    assert len(charts) == 4  # two metrics, entropy being neither good nor bad, against two kinds of speed
    titles = [title.text or "" for title in charts[2].iter("title")]
    assert [title.partition(":")[0] for title in titles] == ["plain", "lantern"]  # no point without a speed-up
    assert "wall-clock speed-up 3 [2.9, 3.1], fd@shapes (lower is better) 2.5 [2.4, 2.6]" in titles[1]
    facts = ["".join(fact.itertext()) for fact in tree.iter("dd")]
    assert "1 & 2" in facts and "a<b" in facts


def test_points_and_their_intervals_lie_inside_the_axes() -> None:
    points = [Point("a", "a", (1, 1, 1), (-3.0, -4.0, -2.0)), Point("b", "b", (2.5, 2, 3.7), (1e-3, 0, 2e-3))]
    tree = ElementTree.fromstring(chart(points, "x < y", True))
    bars = [path.attrib["d"] for path in tree.iter("path") if path.attrib["class"] == "bar"]
    for bar in bars:
        left, y, right, x, low, high = map(float, re.findall(r"-?[\d.]+", bar))
        assert LEFT <= left <= x <= right <= WIDTH - RIGHT and TOP <= high <= y <= low <= HEIGHT - BOTTOM
    one = ElementTree.fromstring(chart([Point("a", "a", (1, 1, 1), (2, 2, 2))], "y", None))
    assert len(list(one.iter("circle"))) == 1 and not list(one.iter("polyline"))


def test_the_front_is_pareto_optimal() -> None:
    def point(x: float, y: float) -> Point:
        return Point("", "", (x, x, x), (y, y, y))

    points = [point(1, 5), point(2, 4), point(2, 3), point(3, 4.5), point(4, 1)]
    assert [(p.x[0], p.y[0]) for p in front(points, True)] == [(1, 5), (3, 4.5), (4, 1)]
    assert [(p.x[0], p.y[0]) for p in front(points, False)] == [(4, 1)]


def test_the_command_writes_the_page_again(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(record, tmp_path)
    (tmp_path / "results.csv").unlink()
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.html").read_text() == page([ReportRun("", record, tmp_path)])
    assert (tmp_path / "results.csv").is_file()
    record["schema_version"] = 99
    write_results(record, tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    assert "schema version 99; this mmspec reads 2" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "holds no results of `mmspec eval`" in capsys.readouterr().err


def test_cards_show_the_acceptance_of_drafts(record: dict[str, Any], tmp_path: Path) -> None:
    tree = ElementTree.fromstring(page([ReportRun("", record, tmp_path)]).partition("\n")[2])
    cards = [part for part in tree.iter("div") if part.attrib.get("class") == "card"]
    assert ["".join(name.itertext()) for card in cards for name in card.iter("h3")] == list(RECIPES[1:])
    histogram, slots = cards[0].iter("svg")
    assert [t.text for t in histogram.iter("title")] == ["1: 25.0%", "2: 75.0%"]
    assert [t.text for t in slots.iter("title")] == ["1: 50.0%", "2: 0.0%"]
    shapes = []
    for card in cards:
        (shown,) = card.iter("img")
        with Image.open(io.BytesIO(base64.b64decode(shown.attrib["src"].partition(",")[2]))) as image:
            shapes.append((shown.attrib["class"], image.size))
            assert image.getpixel((0, 0)) == (46, 30, 92) and image.getpixel((1, 0)) == (250, 222, 70)
    assert shapes == [("grid-map", (2, 2)), ("strip-map", (4, 1))]


def test_several_runs_make_one_page(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_results(record, tmp_path / name)
        record["rows"] = record["rows"][:2]
        record["rows"][0]["quality"]["fd@shapes"]["n"] = 9
    assert main(["report", "one", "two"]) == 0
    assert capsys.readouterr().out == "one/report.html\ntwo/report.html\ncomparison.html\n"
    tree = ElementTree.fromstring((tmp_path / "comparison.html").read_text().partition("\n")[2])
    cells = ["".join(cell.itertext()) for cell in tree.iter("td")]
    assert {"one: plain", "one: lantern:delta=0.2", "two: scd"} <= set(cells) and "two: lantern:delta=0.2" not in cells
    text = "".join(tree.itertext())
    assert "Distances of different numbers of samples (4, 9) must not be compared" in text
    assert main(["report", "one", "-o", "none/x.html"]) == 2


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_renders_the_page_without_messages(record: dict[str, Any], tmp_path: Path, width: int) -> None:
    # What only a browser can check: nothing overflows sideways, the charts have a size. In a frame, since a headless
    # window is at least 500 pixels wide.
    probe = (
        "<script>parent.document.title = [document.documentElement.scrollWidth, "
        "document.querySelector('svg').getBoundingClientRect().width].join()</script></body>"
    )
    inner = escape(page([ReportRun("", record, tmp_path)]).replace("</body>", probe))
    path = tmp_path / "frame.html"
    path.write_text(
        f'<title>-</title><iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{inner}"></iframe>'
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    flags += ["--window-size=1400,1000", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(CHROMIUM), *flags, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    found = re.search(r"<title>([\d.]+),([\d.]+)</title>", done.stdout)
    assert found is not None
    assert float(found[1]) <= width and 200 < float(found[2]) < width
