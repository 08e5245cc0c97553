"""The report is one well-formed, self-contained file that shows all measurements."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pydantic
import pytest
from chromium import Page, in_frame
from packaging.version import Version
from PIL import Image

from mmspec.cli.app import main
from mmspec.metrics.evaluation.config import EvalConfig
from mmspec.metrics.evaluation.evaluate import EvaluationResult
from mmspec.metrics.evaluation.journal import sample_path
from mmspec.metrics.evaluation.results import record_of, write_results
from mmspec.metrics.evaluation.schema import json_schema, read_record
from mmspec.metrics.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, chart, front
from mmspec.metrics.report.markup import Element, document
from mmspec.metrics.report.page import page, script
from mmspec.metrics.report.runs import ReportRun
from mmspec.metrics.report.samples import Budget, samples
from mmspec.metrics.report.style import COLORS, STYLE

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
    addresses = [v for element in tree.iter() for k, v in element.attrib.items() if k in ("src", "data")]
    assert addresses and all(address.startswith("data:image/png;base64,") for address in addresses)
    assert all(element.attrib.get("href", "#").startswith("#") for element in tree.iter())
    rest = re.sub(r'src="[^"]*"', "", text).replace(script(), "")
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<link", rest) and rest.count("<script") == 1
    assert not re.search(r"https?:|fetch|XMLHttp|import|innerHTML|eval\(|Function", script())


def test_colors_of_families_differ() -> None:
    values = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in COLORS])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    # Oklab (Ottosson 2020), in which 0.02 is about the least difference that is seen.
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
    opponent = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
    lab = np.cbrt(linear @ cones.T) @ opponent.T
    apart = np.linalg.norm(lab[:, None] - lab, axis=-1) + np.eye(len(COLORS))
    assert apart.min() > 0.08


def test_the_page_shows_images_side_by_side(record: dict[str, Any], tmp_path: Path) -> None:
    tree = ElementTree.fromstring(page([ReportRun("", record, tmp_path)]).partition("\n")[2])
    images = [image for image in tree.iter("img") if ": " in image.attrib["alt"]]
    assert [p.attrib["alt"] for p in images] == [f"{recipe}: {PROMPT}" for recipe in RECIPES]
    for i, image in enumerate(images):
        data = base64.b64decode(image.attrib["src"].partition(",")[2])
        with Image.open(io.BytesIO(data)) as shown:
            assert shown.size == (400, 300) and shown.getpixel((5, 5)) == (i * 100, 0, 0)


def test_images_beyond_the_page_s_budget_are_scaled_down(record: dict[str, Any], tmp_path: Path) -> None:
    tree = ElementTree.fromstring(f"<p>{''.join(map(str, samples(record['config'], tmp_path, Budget(1))))}</p>")
    sizes = []
    for shown in tree.iter("img"):
        with Image.open(io.BytesIO(base64.b64decode(shown.attrib["src"].partition(",")[2]))) as image:
            sizes.append(image.size)
    assert sizes == [(256, 192)] * 3


def test_the_page_shows_every_number(record: dict[str, Any], tmp_path: Path) -> None:
    tree = ElementTree.fromstring(page([ReportRun("", record, tmp_path)]).partition("\n")[2])
    cells = ["".join(cell.itertext()) for tag in ("th", "td") for cell in tree.iter(tag)]
    for text in (
        "plain",
        "CHECK FAILED",
        "relaxed",
        "0.0200",
        "2.50 [2.40, 2.60]",
        "2.00 [1.90, 2.10] differs",
        "1.000",
    ):
        assert text in cells, text
    charts = [figure for figure in tree.iter("figure") if list(figure.iter("svg"))]
    assert len(charts) == 4  # two metrics, entropy being neither good nor bad, against two kinds of speed
    titles = [title.text or "" for title in charts[2].iter("title")]
    assert [title.partition(":")[0] for title in titles] == ["plain", "lantern"]  # no point without a speed-up
    assert "wall-clock speed-up, batch 1 3 [2.9, 3.1], fd@shapes (lower is better) 2.5 [2.4, 2.6]" in titles[1]
    facts = ["".join(fact.itertext()) for fact in tree.iter("dd")]
    assert "1 & 2" in facts and "a<b" in facts


def test_points_and_their_intervals_lie_inside_the_axes() -> None:
    points = [Point("a", "a", (1, 1, 1), (-3.0, -4.0, -2.0)), Point("b", "b", (2.5, 2, 3.7), (1e-3, 0, 2e-3))]
    tree = ElementTree.fromstring(str(chart(points, "x < y", True)))
    bars = [path.attrib["d"] for path in tree.iter("path") if path.attrib["class"] == "bar"]
    for bar in bars:
        left, y, right, x, low, high = map(float, re.findall(r"-?[\d.]+", bar))
        assert LEFT <= left <= x <= right <= WIDTH - RIGHT and TOP <= high <= y <= low <= HEIGHT - BOTTOM
    one = ElementTree.fromstring(str(chart([Point("a", "a", (1, 1, 1), (2, 2, 2))], "y", None)))
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
    cells = ["".join(cell.itertext()) for cell in tree.iter("th")]
    assert {"one: plain", "one: lantern:delta=0.2", "two: scd"} <= set(cells) and "two: lantern:delta=0.2" not in cells
    text = "".join(tree.itertext())
    assert "Distances of different numbers of samples (4, 9) must not be compared" in text
    assert main(["report", "one", "-o", "none/x.html"]) == 2


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_renders_the_page_without_messages(
    tab: Page, record: dict[str, Any], tmp_path: Path, width: int
) -> None:
    # What only a browser can check: nothing overflows sideways, the charts have a size, the policy allows the style.
    values = (
        "page.documentElement.scrollWidth, page.querySelector('svg').getBoundingClientRect().width, "
        "page.querySelector('.samples img').naturalWidth, frame.contentWindow.getComputedStyle(page.body).maxWidth"
    )
    text, console = in_frame(tab, page([ReportRun("", record, tmp_path)]), tmp_path, width, values)
    assert not console
    scroll, chart_width, image, style = text.split(",")
    assert float(scroll) <= width and 200 < float(chart_width) < width and image == "400" and style == "1350px"


@pytest.mark.browser
def test_the_policy_of_the_page_stops_what_is_added_to_it(tab: Page, record: dict[str, Any], tmp_path: Path) -> None:
    added = (
        "<script>document.body.id = 'ran'</script><img src='x:' onerror=\"document.body.id = 'ran'\"/>"
        "<style>body { max-width: 7px }</style></body>"
    )
    text = page([ReportRun("", record, tmp_path)]).replace("</body>", added)
    values = "page.body.id, frame.contentWindow.getComputedStyle(page.body).maxWidth"
    found, console = in_frame(tab, text, tmp_path, 1280, values)
    assert found == ",1350px" and console.count("Content Security Policy") >= 3


ATTACK = '</title><script>alert(1)</script><img src=x onerror=alert(1)>"\' onload="x\x00\x1b\ud800'


def test_no_value_becomes_markup(record: dict[str, Any], tmp_path: Path) -> None:
    shape = tags(page([ReportRun("", record, tmp_path)]))
    everywhere = attacked(record)
    text = page([ReportRun(ATTACK, everywhere, tmp_path), ReportRun("two", record, tmp_path)])
    assert tags(text) <= shape | {"h3"} and text.count("<script") == 1 and "<img src=x" not in text
    text.encode()
    tree = ElementTree.fromstring(text.partition("\n")[2])
    shown = ATTACK.replace("\x00", "\ufffd").replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")
    assert shown in [fact.text for fact in tree.iter("dd")]
    assert not any(name.startswith("on") for element in tree.iter() for name in element.attrib)


def tags(text: str) -> set[str]:
    return {element.tag for element in ElementTree.fromstring(text.partition("\n")[2]).iter()}


def attacked(value: Any, key: str = "") -> Any:
    """The record with every text replaced, keys of mappings that users choose included."""
    if isinstance(value, dict):
        free = key in ("quality", "environment", "parts")
        return {(ATTACK + k if free else k): attacked(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [attacked(one, key) for one in value]
    return ATTACK if isinstance(value, str) else value


def test_markup_takes_text_and_elements_of_its_list_only() -> None:
    assert str(Element("p", "a<b", None, [Element("b", '"')], title="'&")) == (
        '<p title="&#x27;&amp;">a&lt;b<b>&quot;</b></p>'
    )
    for tag, attributes in [("script", {}), ("iframe", {}), ("p", {"onclick": "x"}), ("p", {"style": "x"}),
                            ("img", {"src": "http://x"}), ("a", {"href": "x"})]:  # fmt: skip
        with pytest.raises(ValueError, match="the report has no element"):
            Element(tag, **attributes)
    with pytest.raises(ValueError, match="has no content"):
        Element("img", "x")
    assert STYLE in document("x", STYLE, [])
    with pytest.raises(ValueError, match="read differently"):
        document("x", "a > b {}", [])


def damaged(record: dict[str, Any]) -> list[tuple[Any, str]]:
    """Results that are not those of a run, and what the message says."""

    def at(value: Any, *path: Any) -> Any:
        copy = json.loads(json.dumps(record))
        inner = copy
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return copy

    return [
        ([], "should be an object"),
        ({}, "schema version None; this mmspec reads 2"),
        ({"schema_version": 2}, "config: Field required (and 3 more)"),
        (at(["0<script>alert(1)</script>"], "config", "seeds"), "config.seeds.0: Input should be a valid integer"),
        (at(["../../etc/x"], "config", "seeds"), "config.seeds.0: Input should be a valid integer"),
        (at([], "config", "seeds"), "config has no prompts, or no seeds"),
        (at({}, "rows"), "rows: Input should be a valid array"),
        (at([], "rows"), "rows: List should have at least 1 item"),
        (at("1", "rows", 0, "speed", "nfe"), "rows.0.speed.nfe: Input should be a valid number"),
        (at(True, "rows", 0, "speed", "samples"), "rows.0.speed.samples: Input should be a valid integer"),
        (at([2.0], "rows", 0, "speed", "accepted_at"), "less than or equal to 1"),
        (at(0, "rows", 0, "speed", "grid"), "greater than or equal to 1"),
        (at({}, "rows", 1, "quality"), "recipe 'scd' has other metrics than 'plain'"),
        (at({"x": []}, "environment"), "environment.x"),
        (at(10**30, "rows", 0, "speed", "peak_memory"), "less than"),
    ]


def test_results_of_others_are_checked(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    cases = [(json.dumps(value).encode(), message) for value, message in damaged(record)]
    cases += [
        (b"[" * 100_000, "recursion limit exceeded"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"", "Invalid JSON"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "Invalid JSON: number out of range"),
        (json.dumps(record).replace("2.0", "NaN").encode(), "finite number"),
    ]
    for content, message in cases:
        path.write_bytes(content)
        assert main(["report", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1 and str(path) in error, (content[:80], error)
        assert not (tmp_path / "report.html").exists()


def test_the_page_shows_no_file_outside_of_the_folder(record: dict[str, Any], tmp_path: Path) -> None:
    outside = tmp_path / "secret.png"
    folder = tmp_path / "results"
    Image.new("RGB", (9, 9)).save(outside)
    link = folder / sample_path("plain", PROMPT, 3)
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    assert "data:image/png;base64" not in "".join(map(str, samples(record["config"], folder)))
    link.unlink()
    shutil.copy(outside, link)
    assert "data:image/png;base64" in "".join(map(str, samples(record["config"], folder)))


def undescribed(schema: Any) -> Any:
    """A schema without descriptions, which releases of pydantic take from docstrings or not."""
    if isinstance(schema, dict):
        return {key: undescribed(value) for key, value in schema.items() if key != "description"}
    return [undescribed(one) for one in schema] if isinstance(schema, list) else schema


def test_committed_results_are_of_the_published_schema(root: Path) -> None:
    published = root / "docs" / "results.schema.json"
    written, ours = json.loads(published.read_text()), json_schema()
    assert written["$defs"].keys() == ours["$defs"].keys()
    if Version(pydantic.VERSION) >= Version("2.14"):  # earlier ones describe the same types in another way
        assert written == ours, "write it: see the module mmspec.metrics.evaluation.schema"
    for path in [root / "examples/speech/eval/results.json", *(root / "examples/quality_vs_speed").glob("*.json")]:
        written = {"planned_prompts": None, **json.loads(path.read_bytes())}
        for difference in (one["difference"] for row in written["rows"] for one in row["quality"].values()):
            if difference is not None:  # of earlier versions
                difference |= {"p": None, "sample_effect": None, "simultaneous": None} | difference
        assert read_record(path.read_bytes(), str(path)) == written
