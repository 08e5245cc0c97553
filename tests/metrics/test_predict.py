"""`mmspec bench predict`, on a pipeline whose acceptance and costs are known."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

import mmspec
from mmspec.cli.app import main
from mmspec.cli.bench_predict import page, telling
from mmspec.cli.builtin_prompts import builtin_prompts
from mmspec.decoding.stats import PARTS, RowStats, Stats
from mmspec.errors import ArgumentError
from mmspec.metrics.bench.predict import TIMED, at_widths, calls, interpolated, predict
from mmspec.metrics.prompts import BUILTIN, SCENES
from mmspec.recipes import Recipe, parse

SCD, SJD, RECYCLE = (parse(name) for name in ("scd", "sjd", "recycle"))


@dataclass
class Output:
    stats: Stats


class Pipe:
    """Accepts each draft with a known chance; a call costs 1 ms, and a share of that for each draft."""

    def __init__(self, accepted: float = 0.8, per_draft: float = 0.02, length: int = 240) -> None:
        self.accepted, self.per_draft, self.length = accepted, per_draft, length
        self.calls: list[tuple[str, int]] = []
        self.config = {"recipe": "scd"}

    def set_progress_bar_config(self, *, disable: bool) -> None:
        assert disable

    def tokens_per_call(self, width: int) -> float:
        return (1 - self.accepted**width) / (1 - self.accepted)

    def __call__(self, prompts: list[str], *, recipe: Recipe, seed: Any, **options: Any) -> Output:
        if recipe.name == "recycle":
            raise ArgumentError("this model cannot recycle")
        self.calls.append((str(recipe), len(prompts)))
        assert len(seed) == len(prompts)
        width = recipe.window
        count = max(round(self.length / self.tokens_per_call(width)), 1)
        seconds = count * (1 + self.per_draft * (width - 1)) / 1000
        slots = width - 1
        rows = [RowStats(self.length, count, 0.0, None, None)] * len(prompts)
        return Output(
            Stats(
                count, self.length * len(prompts), self.length / count, [self.accepted] * slots, 0, seconds,
                dict.fromkeys(PARTS, 0.0), 0, entropy=3.5 if "measure_entropy" in options else None, rows=rows,
                tested=[100] * min(slots, 40) + [1] * (slots - 40),
            )
        )  # fmt: skip


def test_rows_are_those_of_the_pipeline() -> None:
    pipe = Pipe()
    report = predict(pipe, ["a"] * 3, [SCD])
    assert [(row.recipe, row.measured) for row in report.rows] == [
        ("scd:window=4", True),
        ("scd:window=8", False),
        ("scd:window=16", True),
        ("scd:window=32", False),
        ("scd:window=64", True),
    ]
    for row in report.rows:
        width = parse(row.recipe).window
        assert row.tokens_per_call.value == pytest.approx(
            pipe.tokens_per_call(width), rel=0.02 if row.measured else 0.1
        )
        assert row.cost == pytest.approx(1 + 0.02 * (width - 1))
        assert row.speedup.value == pytest.approx(row.tokens_per_call.value / row.cost)
    assert report.bits_per_token == 3.5 and report.plain_seconds == pytest.approx(0.001) and report.tokens == 240
    assert report.acceptance["scd:window=64"][38:42] == [0.8, 0.8, None, None] and len(report.acceptance) == 1
    assert report.best is not None and report.best.recipe == "scd:window=16"


def test_widths_between_are_run_for_their_cost_alone() -> None:
    pipe = Pipe()
    predict(pipe, ["a"] * 5, [SCD, SJD], batch=2)
    counted, timed = pipe.calls[:21], pipe.calls[21:]
    assert counted[:3] == [("plain", 2), ("plain", 2), ("plain", 1)]
    assert {name for name, _ in counted} == {"plain"} | {
        f"{name}{window}" for name in ("scd", "sjd") for window in (":window=4", ":window=16", ":window=64")
    }
    assert len(timed) == TIMED * 11 and {rows for _, rows in timed} == {1} and ("scd:window=8", 1) in timed
    assert len(pipe.calls) == calls([SCD, SJD], 5, 2)


@pytest.mark.parametrize(
    ("accepted", "per_draft", "best"),
    [(0.9, 0.0, "scd:window=64"), (0.8, 1.0, None), (0.02, 0.0, None), (0.5, 0.1, "scd:window=4")],
)
def test_what_to_use(accepted: float, per_draft: float, best: str | None) -> None:
    report = predict(Pipe(accepted, per_draft), ["a"] * 3, [SCD])
    assert (report.best and report.best.recipe) == best
    said = page(report).splitlines()[-1]
    assert said.startswith(f"use {best}: predicted " if best else "do not: ")


@pytest.mark.parametrize(("slower", "pays"), [(1.0, True), (2.0, True), (4.0, False)])
def test_the_interval_of_a_speedup_has_the_spread_of_its_cost(slower: float, pays: bool) -> None:
    class Busy(Pipe):
        """One sample's drafting calls take longer."""

        def __call__(self, prompts: list[str], *, recipe: Recipe, seed: Any, **options: Any) -> Output:
            out = super().__call__(prompts, recipe=recipe, seed=seed, **options)
            factor = slower if recipe.name == "scd" and seed == [2] else 1
            return Output(replace(out.stats, seconds=out.stats.seconds * factor))

    report = predict(Busy(), ["a"] * 4, [SCD])
    for row in report.rows:
        assert row.speedup.low == pytest.approx(row.tokens_per_call.low / row.cost / slower)
        assert row.speedup.high == pytest.approx(row.tokens_per_call.high / row.cost)
    assert (report.best is not None) == pays


@pytest.mark.parametrize(
    ("length", "widths"), [(1, [4]), (2, [4]), (9, [4, 8, 16]), (20, [4, 8, 16, 32]), (100, [4, 8, 16, 32, 64])]
)
def test_widths_end_with_the_sequence(length: int, widths: list[int]) -> None:
    assert [recipe.window for recipe in at_widths(SCD, length)] == widths
    report = predict(Pipe(length=length), ["a"] * 2, [SCD])
    assert [row.measured for row in report.rows][-1] and len(report.rows) == len(widths)


def test_a_recipe_without_a_window_is_run_as_it_is() -> None:
    tree = parse("tree:branch=2/1")
    assert at_widths(tree, 100) == [tree]


def test_interpolation_stays_between_its_neighbors() -> None:
    known = {4: 1.5, 16: 6.0, 64: 6.1}
    assert [interpolated(width, known) for width in known] == [*known.values()]
    assert 1.5 < interpolated(8, known) < 6.0 < interpolated(32, known) <= 6.1


def test_a_recipe_that_is_not_possible_is_said() -> None:
    report = predict(Pipe(), ["a"] * 2, [SCD, RECYCLE])
    assert report.refused == {"recycle": "this model cannot recycle"} and len(report.rows) == 5
    assert "not possible: recycle: this model cannot recycle" in page(report)
    with pytest.raises(ArgumentError, match="^recipes=recycle is not possible for this model: this"):
        predict(Pipe(), ["a"] * 2, [RECYCLE])


@pytest.mark.parametrize(("per_draft", "noted"), [(0.02, False), (0.0, False), (-0.01, True)])
def test_a_clock_that_cannot_be_trusted_is_said(per_draft: float, noted: bool) -> None:
    text = page(predict(Pipe(per_draft=per_draft), ["a"] * 2, [SCD, parse("scd:start=left"), SJD]))
    assert ("note: a wider window took less time" in text) == noted


def test_a_model_that_cannot_measure_its_entropy_is_predicted_without() -> None:
    class Vectors(Pipe):
        def __call__(self, prompts: list[str], *, recipe: Recipe, seed: Any, **options: Any) -> Output:
            if "measure_entropy" in options:
                raise ArgumentError("measure_entropy is not possible here: a vector's distribution has no entropy")
            return super().__call__(prompts, recipe=recipe, seed=seed, **options)

    report = predict(Vectors(), ["a"] * 2, [SCD])
    assert report.bits_per_token is None and "bits" not in page(report) and len(report.rows) == 5


def test_slots_that_tell() -> None:
    assert telling([0.5, 0.9, 0.9, 0.9, 0.8, 0.9, None, 0.4, 0.95]) == [
        (1, 0.5), (2, 0.9), (3, 0.9), (4, 0.9), (5, 0.8), (8, 0.4)
    ]  # fmt: skip
    assert telling([]) == []


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    pipe = Pipe()
    monkeypatch.setattr(mmspec, "load", lambda model, device, dtype=None: pipe, raising=False)
    return pipe


def test_the_command(loaded: Pipe, capsys: pytest.CaptureFixture[str]) -> None:
    loaded.config = {"recipe": "stand"}
    assert main(["bench", "predict", "-m", "spoken", "--samples", "2", "--recipes", "scd", "--prompt", "x"]) == 0
    text = capsys.readouterr().out
    assert "measured: 2 samples of 240 tokens, 3.50 bits per token, 1.00 ms per token by plain decoding\n" in text
    assert "| scd:window=8 " in text and "| predicted |" in text and "| stand" in text
    assert main(["bench", "predict", "-m", "spoken", "--samples", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["model"] == "spoken" and {parse(row["recipe"]).name for row in record["rows"]} == {
        "scd",
        "sjd",
        "stand",
    }


@pytest.mark.parametrize(
    ("classes", "first", "last"), [(3, "0", "2"), (16, "0", "15"), (17, "0", "16"), (1000, "0", "945")]
)
def test_builtin_prompts_of_classes_are_their_numbers(classes: int, first: str, last: str) -> None:
    class Classes(Pipe):
        transformer = SimpleNamespace(config=SimpleNamespace(num_classes=classes))

        def __call__(self, prompts: list[str], *, class_labels: Any = None, **options: Any) -> Output:
            return super().__call__(prompts, **options)

    found = builtin_prompts("folder", Classes())
    assert (found[0], found[-1]) == (first, last) and len(found) <= 16
    assert builtin_prompts("folder", Pipe()) == BUILTIN and builtin_prompts("scenes", Pipe()) == SCENES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--samples", "1"], "--samples"),
        (["--recipes", ","], "--recipes: no recipe named"),
        (["--recipes", "scdd"], "'scdd'"),
        (["--recipes", "scd,sjd:window=8"], "sjd:window=8 sets a window, which predict chooses"),
        (["--recipes", "plain"], "plain has no drafts"),
        (
            ["--recipes", "recycle", "--prompt", "x"],
            "recipes=recycle is not possible for this model: this",
        ),
        (["--prompts", "missing.txt"], "missing.txt"),
    ],
)
def test_bad_input(loaded: Pipe, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    loaded.config = {"recipe": "plain"}
    assert main(["bench", "predict", "-m", "spoken", *words]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert said in errors[-1] and errors[-1].startswith("mmspec: error: ")
