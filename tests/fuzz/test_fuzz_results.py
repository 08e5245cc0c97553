"""Journals and results with values replaced at random: refused in one line, or shown as inert as any other."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fuzzing import TALLY, check_no_faults, run_python
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmspec.metrics.evaluation.config import EvalConfig, read_config
from mmspec.metrics.evaluation.journal import Journal, SampleRecord, sample_path
from mmspec.metrics.evaluation.results import as_csv, read_results, table
from mmspec.metrics.evaluation.schema import read_record
from mmspec.metrics.evaluation.speed import speed_of
from mmspec.metrics.report.markup import Element, document
from mmspec.metrics.report.page import page
from mmspec.metrics.report.runs import ReportRun
from mmspec.metrics.report.style import STYLE

EXAMPLE = Path(__file__).parents[2] / "examples" / "quality_vs_speed" / "relaxed.json"
EXTREMES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**53, 2**63, 10**30, 10**400, 0.5, -0.0, 5e-324, 1e308, -1e308, 1e30, "", "x",
    "<script>alert(1)", "../../etc/passwd",
    "\N{REPLACEMENT CHARACTER}\u202e\x00", "a" * 3000, [], {}, [[]], {"value": 1}, [0] * 3,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def changed(value: Any, rng: random.Random) -> Any:
    """A copy with one to three values replaced, removed or doubled."""
    copy = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice([path for path in places(copy) if path])
        holder = copy
        for key in path[:-1]:
            holder = holder[key]
        how = rng.random()
        if how < 0.75:
            holder[path[-1]] = rng.choice(EXTREMES)
        elif how < 0.9:
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.append(holder[path[-1]])
        else:
            holder[rng.choice(("x", "<b>", "value", "\ud7ff"))] = holder[path[-1]]
    return copy


def shown(content: bytes, folder: Path) -> None:
    """Reads results and renders them in every form; what is rendered must be inert."""
    (folder / "results.json").write_bytes(content)
    record = read_results(folder)
    batch = record["config"]["batch"]
    table(record["rows"], batch), as_csv(record["rows"], batch)
    text = page([ReportRun("", record, folder)])
    tree = ElementTree.fromstring(text.partition("\n")[2])
    assert not {"iframe", "object"} & {element.tag for element in tree.iter()} and len(list(tree.iter("script"))) == 1
    assert all(link.attrib["href"].startswith("#") for link in tree.iter("a"))


@pytest.fixture(scope="module")
def base() -> Any:
    """Results with a few recipes."""
    record = json.loads(EXAMPLE.read_text())
    record["rows"] = record["rows"][:3]
    record["config"]["prompts"] = record["config"]["prompts"][:3]
    for row in record["rows"]:
        row["speed"]["accepted_at"] = row["speed"]["accepted_at"][:16]
        row["speed"]["grid"] = 4
    return record


def test_results(base: Any, tmp_path: Path, rng: random.Random, count: int) -> None:
    before = len(TALLY.faults)
    assert run_python("results", "right", lambda: shown(json.dumps(base).encode(), tmp_path)) == "accepted"
    text = json.dumps(base).encode()
    for i in range(count * 2):
        content = json.dumps(changed(base, rng)).encode()
        if i % 4 == 0:
            cut = bytearray(text)
            cut[rng.randrange(len(cut))] = rng.randrange(256)
            content = bytes(cut[: rng.randrange(len(cut))] if i % 8 else cut)
        run_python("results", content[-200:], lambda content=content: shown(content, tmp_path))  # type: ignore[misc]
    check_no_faults(before)


def test_journals(tmp_path: Path, rng: random.Random, count: int) -> None:
    before = len(TALLY.faults)
    keys = [("plain", "a", seed) for seed in range(2)]
    records = []
    for key in keys:
        path = sample_path(*key)
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / path)
        parts = {"target": 1.0, "rule": 0.5}
        record = SampleRecord(
            *key, 0, path.as_posix(), 1.0, 1.0, 1.0, parts, 4, 2.0, [1, 3], 0, 0.0, 1.0, 2.0, [0.5, None], 2, None
        )
        records.append(asdict(record))

    def read(lines: list[bytes]) -> None:
        (tmp_path / "samples-0.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        found = list(Journal(tmp_path).read().values())
        if len(found) == 2:
            read_record_of(speed_of(found, found, True))

    def read_record_of(speed: Any) -> None:
        json.dumps(asdict(speed), allow_nan=False)

    assert run_python("journals", "right", lambda: read([json.dumps(r).encode() for r in records])) == "accepted"
    for i in range(count * 2):
        lines = [json.dumps(changed(records[0], rng)).encode(), json.dumps(records[1]).encode()]
        if i % 4 == 0:
            cut = bytearray(lines[1])
            cut[rng.randrange(len(cut))] = rng.randrange(256)
            lines[1] = bytes(cut)
        run_python("journals", lines[0][:300], lambda lines=lines: read(lines))  # type: ignore[misc]
    check_no_faults(before)


def test_configurations(tmp_path: Path, rng: random.Random, count: int) -> None:
    import yaml

    before = len(TALLY.faults)
    config = EvalConfig("shapes", ("a", "b"), ("plain", "scd"), (0, 1), ("attributes",)).to_dict()
    for _ in range(count):
        values = changed(config, rng)
        text = yaml.safe_dump(values, allow_unicode=True)
        if rng.random() < 0.3:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice("[]{}:&*!|>'\"%@`\t\x07-") + text[at + 1 :]
        (tmp_path / "config.yaml").write_text(text)
        run_python("configurations", text[:200], lambda: read_config(tmp_path))
    check_no_faults(before)


@settings(max_examples=60, deadline=None, derandomize=True, database=None, phases=(Phase.generate, Phase.shrink),
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
def test_no_text_becomes_markup(text: str, value: str) -> None:
    made = document(text, STYLE, [Element("p", text, title=value), Element("td", [text, None, Element("b", value)])])
    made.encode()
    tree = ElementTree.fromstring(made.partition("\n")[2])
    tags = " ".join(element.tag for element in tree.iter())
    assert tags == "html head meta meta meta title style body p td b"
    paragraph = tree.find("body/p")
    assert paragraph is not None and set(paragraph.attrib) == {"title"} and len(paragraph.text or "") == len(text)


@settings(max_examples=150, deadline=None, derandomize=True, database=None, phases=(Phase.generate, Phase.shrink))
@given(st.binary())
def test_no_bytes_are_results(content: bytes) -> None:
    assert run_python("bytes as results", content, lambda: read_record(content, "x")) == "refused"
