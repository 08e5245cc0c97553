"""The arithmetic of benchmarks, on a pipeline with known costs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_pipe import open_gate
from PIL import Image

import mmspec
from mmspec.cli.app import main
from mmspec.cli.bench import read_sizes, split_recipes
from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError
from mmspec.metrics.bench.recipes import SamplingOverrides, bench, generations, group_prompts
from mmspec.metrics.bench.table import table
from mmspec.metrics.prompts import BUILTIN, SCENES, read_prompts
from mmspec.recipes import Recipe, parse
from mmspec.testing import exactness
from mmspec.vision.scenes.grammar import parse as read_scenes_caption
from mmspec.vision.shapes.grammar import parse as read_caption

PLAIN, SCD, SJD = (parse(name) for name in ("plain", "scd", "sjd"))
SECONDS = {"plain": 4.0, "scd": 1.0, "sjd": 2.0}  # of a call, with 16 tokens per row


def gate(ok: bool) -> exactness.ExactnessResult:
    return exactness.ExactnessResult(tv=0.1, floor=0.0, limit=0.2 if ok else 0.0, samples=1, tokens_per_call=1.0)


@dataclass
class Output:
    stats: Stats
    images: Any = None


class Pipe:
    """Takes `SECONDS` on a simulated clock, three quarters of it in the target, and 1 % more with each call."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[dict[str, Any]] = []
        self.config = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "guidance_scale": 2.0}

    def set_progress_bar_config(self, *, disable: bool) -> None:
        assert disable

    def __call__(self, prompts: list[str], **options: Any) -> Output:
        name = options["recipe"].name
        seconds = SECONDS[name] * 1.01 ** len(self.calls)
        self.calls.append({"prompts": prompts, **options})
        self.now += seconds
        parts = {"target": 0.75 * seconds, "drafter": 0.0, "rule": 0.125 * seconds, "other": 0.125 * seconds}
        calls = int(SECONDS[name]) * 4
        entropy = 3.0 if options["measure_entropy"] else None
        stats = Stats(calls, 16 * len(prompts), 16 / calls, [], 0, seconds, parts, 0, entropy=entropy)
        return Output(stats, [Image.new("RGB", (64, 64))] * len(prompts))


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    pipe = Pipe()
    monkeypatch.setattr(time, "perf_counter", lambda: pipe.now)
    return pipe


def test_rows_hold_the_costs_of_the_pipeline(pipe: Pipe) -> None:
    report = bench(pipe, ["a", "b"], [SCD, SJD], gate=lambda _: gate(True), batches=(1, 2), repeats=3)
    assert [(row.batch, row.recipe) for row in report.rows] == [
        (batch, name) for batch in (1, 2) for name in ("plain", "scd", "sjd")
    ]
    for row in report.rows:
        assert row.speedup is not None
        assert row.speedup.median == pytest.approx(SECONDS["plain"] / SECONDS[row.recipe], rel=0.03)
        assert row.speedup.low is not None and row.speedup.high is not None
        assert row.speedup.low <= row.speedup.median <= row.speedup.high
        assert row.loop_overhead == pytest.approx(1 / 3)
        assert row.tokens_per_call == 4 / SECONDS[row.recipe]
        assert row.nfe == 4 * SECONDS[row.recipe]
        assert row.bits_per_token == 3.0
        assert sum(row.parts.values()) == pytest.approx(row.seconds.median, rel=0.2)
    assert report.rows[0].speedup is not None and report.rows[0].speedup.median == 1


def test_warm_up_is_measured_for_entropy_and_not_timed(pipe: Pipe) -> None:
    report = bench(pipe, ["a", "b"], [SCD], gate=lambda _: gate(True), repeats=2)
    warm = [call for call in pipe.calls if call["measure_entropy"]]
    assert len(warm) == 4
    assert pipe.calls[:4] == warm
    assert len(report.runs) == 4
    assert all(run.tokens == 32 for run in report.runs)


def test_recipes_take_turns_on_the_same_seeds(pipe: Pipe) -> None:
    bench(pipe, ["a", "b"], [PLAIN, SCD, SJD], gate=lambda _: gate(True), repeats=2, seed=10)
    timed = [(call["recipe"].name, call["seed"]) for call in pipe.calls if not call["measure_entropy"]]
    turns = [timed[i : i + 3] for i in range(0, len(timed), 3)]
    assert [{seed for _, seed in turn} for turn in turns] == [{10}, {11}, {12}, {13}]
    assert [turn[0][0] for turn in turns] == ["plain", "scd", "sjd", "plain"]
    assert all({name for name, _ in turn} == {"plain", "scd", "sjd"} for turn in turns)


def test_quality_is_measured_in_the_pass_that_is_not_timed(pipe: Pipe) -> None:
    scored: list[Any] = []

    def score(out: Output, prompts: Sequence[str]) -> float:
        scored.append(out)
        return len(prompts) / 4

    report = bench(pipe, ["a", "b"], [SCD], gate=lambda _: gate(True), batches=(2,), repeats=2, score=score)
    assert [row.quality for row in report.rows] == [0.5, 0.5] and len(scored) == 2
    assert "50.0%" in table(report.rows)


def test_every_call_is_announced(pipe: Pipe) -> None:
    seen: list[tuple[str, int]] = []
    prompts = [str(i) for i in range(11)]
    bench(
        pipe, prompts, [SCD], gate=lambda _: gate(True), batches=(1, 4), repeats=2,
        on_run=lambda recipe, rows: seen.append((recipe.name, rows)),
    )  # fmt: skip
    assert len(seen) == len(pipe.calls) == generations(11, [SCD], (1, 4), 2)


def test_no_speedup_without_the_gate(pipe: Pipe) -> None:
    checked: list[str] = []

    def check(recipe: Recipe) -> exactness.ExactnessResult:
        checked.append(recipe.name)
        return gate(recipe.name != "scd")

    report = bench(pipe, ["a"], [SCD, SJD], gate=check, batches=(1, 2), repeats=1)
    assert checked == ["plain", "scd", "sjd"]
    assert [row.speedup is None for row in report.rows] == [False, True, False] * 2
    # One repeat has no spread, in the record and in the table.
    assert report.rows[0].speedup is not None and report.rows[0].speedup.low is None
    lines = table(report.rows).splitlines()
    assert " 1.00 (once) |" in lines[2] and "[" not in lines[2]
    assert "CHECK FAILED" in lines[3] and "| - " in lines[3].replace("  ", "")
    assert len({len(line) for line in lines}) == 1


def test_the_command_prints_no_speedup_without_the_gate(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mmspec.cli.bench.load_image_generator", lambda model, device, drafter, dtype: pipe)
    open_gate(monkeypatch)
    monkeypatch.setattr(exactness, "check", lambda recipe: gate(recipe.name == "plain"))
    arguments = ["bench", "image", "--recipes", "scd", "--batch", "1", "--limit", "2", "--repeats", "1"]
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["recipe"], row["gate"], row["speedup"] is None) for row in rows] == [
        ("plain", True, False), ("scd", False, True),
    ]  # fmt: skip
    assert main(arguments) == 0
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[:4]]
    column = [cell.strip() for cell in lines[0]].index("speed-up")
    assert [line[column].strip() for line in lines[2:]] == ["1.00 (once)", "-"]


def test_overrides_reach_the_pipeline(pipe: Pipe) -> None:
    overrides = SamplingOverrides(temperature=1.0, guidance_scale=2.0)
    bench(pipe, ["a"], [SCD], gate=lambda _: gate(True), repeats=1, overrides=overrides)
    assert all(call["temperature"] == 1.0 and call["guidance_scale"] == 2.0 for call in pipe.calls)
    assert not any({"top_k", "top_p", "min_p"} & call.keys() for call in pipe.calls)  # models lack some of them


def test_groups_are_full() -> None:
    assert group_prompts(["a", "b", "c"], 2) == [["a", "b"], ["c", "a"]]
    assert group_prompts(["a"], 3) == [["a", "a", "a"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain,scd", ["plain", "scd"]),
        ("plain, scd:window=32,coupling=gumbel ,sjd", ["plain", "scd:window=32,coupling=gumbel", "sjd"]),
        ("scd:window=8,scd:window=16", ["scd:window=8", "scd:window=16"]),
    ],
)
def test_recipes_split_where_a_new_one_starts(text: str, expected: list[str]) -> None:
    assert split_recipes(text) == expected


def test_empty_lists_raise() -> None:
    with pytest.raises(ArgumentError, match="--recipes"):
        split_recipes(" , ")
    for text in ("", "0", "1,x", "1,,2"):
        with pytest.raises(ArgumentError, match="--batch"):
            read_sizes(text)


def test_prompts_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("# mine\n\n a red circle \na blue square\n")
    assert read_prompts(str(path)) == ["a red circle", "a blue square"]
    assert read_prompts(str(path), 1) == ["a red circle"]
    path.write_text("# nothing\n")
    with pytest.raises(ArgumentError, match="no prompt"):
        read_prompts(str(path))
    with pytest.raises(ArgumentError, match="cannot read"):
        read_prompts(str(tmp_path / "none.txt"))


def test_the_embedded_models_read_the_builtin_prompts() -> None:
    assert len(set(map(read_caption, BUILTIN))) == len(BUILTIN) == 16
    assert len(set(map(read_scenes_caption, SCENES))) == len(SCENES) == 16


def test_the_command_writes_what_it_prints(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mmspec.cli.bench.load_image_generator", lambda model, device, drafter, dtype: pipe)
    open_gate(monkeypatch)
    out = tmp_path / "results.json"
    arguments = ["bench", "image", "--recipes", "scd", "--batch", "2", "--limit", "4", "--repeats", "1"]
    assert main([*arguments, "-o", str(out), "--temperature", "0.5", "--json"]) == 0
    printed, progress = capsys.readouterr()
    record = json.loads(printed)
    assert progress == ""
    assert record == json.loads(out.read_text())
    assert record["schema_version"] == 1
    assert record["settings"]["prompts"] == list(BUILTIN[:4])
    assert (record["settings"]["temperature"], record["settings"]["guidance_scale"]) == (0.5, 2.0)
    assert record["environment"]["mmspec"] == mmspec.__version__
    assert [row["recipe"] for row in record["rows"]] == ["plain", "scd"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("|     2 | plain ")
    assert main([*arguments, "-o", str(tmp_path / "no" / "x.json")]) == 2
    assert "does not exist" in capsys.readouterr().err
