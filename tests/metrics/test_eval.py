"""`mmspec eval` on a pipeline with known costs and images."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fake_pipe import SECONDS, Pipe, classifier, evaluated_pipe
from PIL import Image

import mmspec
from mmspec.bulk.media import write_durably
from mmspec.cli.app import main
from mmspec.errors import ArgumentError, OutputError, UnknownNameError
from mmspec.files.fingerprint import fingerprint
from mmspec.loading import load
from mmspec.metrics.evaluation import generation
from mmspec.metrics.evaluation.config import EvalConfig
from mmspec.metrics.evaluation.generation import finished_prompts, generate
from mmspec.metrics.evaluation.journal import Journal, SampleRecord, sample_path
from mmspec.metrics.evaluation.results import as_csv, read_results, short, table
from mmspec.metrics.evaluation.scores import read_scores
from mmspec.metrics.evaluation.sweep import expand, expand_all, read_seeds
from mmspec.metrics.extractors.classifier import ClassifierExtractor
from mmspec.metrics.extractors.image import extract
from mmspec.metrics.image.frechet import frechet_distance
from mmspec.metrics.report.runs import ReportRun
from mmspec.metrics.report.tables import markdown
from mmspec.metrics.shares import share_of
from mmspec.recipes import Recipe
from mmspec.testing import exactness

RECIPES = "scd,lantern:delta=0.2|0.9"
METRICS = "fd@shapes,kd@shapes,precision@shapes,recall@shapes,attributes,entropy,nll"


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    return evaluated_pipe(monkeypatch)


def arguments(out: Path, *more: str) -> list[str]:
    """Fifteen samples of each of four recipes."""
    size = ["--limit", "5", "--seeds", "0..2"]
    return ["eval", "-o", str(out), "--recipes", RECIPES, "--metrics", METRICS, *size, *more]


def evaluate(out: Path, *more: str) -> dict[str, Any]:
    assert main(arguments(out, *more)) == 0
    record: dict[str, Any] = json.loads((out / "results.json").read_text())
    return record


def journal(folder: Path, recipe: str) -> list[SampleRecord]:
    return [s for s in Journal(folder / "out").read().values() if s.recipe == recipe and s.seed < 2**40]


def test_results_hold_the_costs_and_images_of_the_pipeline(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = evaluate(tmp_path / "out")
    rows = {row["recipe"]: row for row in record["rows"]}
    assert list(rows) == ["plain", "scd", "lantern:delta=0.2", "lantern:delta=0.9"]
    for name, row in rows.items():
        speed = row["speed"]
        base = SECONDS[name.partition(":")[0]]
        assert speed["samples"] == 15
        assert speed["tokens_per_call"]["value"] == 4 / base and speed["nfe"] == 4 * base
        assert speed["speedup"]["value"] == pytest.approx(4 / base)
        assert speed["speedup"]["low"] == pytest.approx(4 / base)  # a slow prompt is slow for both
        assert base <= speed["p50"] <= speed["p95"] <= 1.75 * base
        assert speed["parts"]["target"] == pytest.approx(0.75 * sum(speed["parts"].values()))
        assert row["quality"]["entropy"]["value"] == 3
        assert speed["first"] == pytest.approx(np.median([s.seconds for s in journal(tmp_path, name)]) / (4 * base))
        assert sum(speed["gains"]) == 15 * 4 * base and speed["gains"][int(4 / base)] == 15 * 4 * base
        assert speed["accepted_at"] == ([1] * int(4 / base - 1) + [0]) * int(4 * base) and speed["grid"] == 4
    assert rows["lantern:delta=0.9"]["speed"]["tv_bound"] == pytest.approx(0.09)
    assert rows["scd"]["speed"]["acceptance"] == [pytest.approx(0.8), pytest.approx(0.4), None]
    nll = rows["lantern:delta=0.9"]["quality"]["nll"]
    assert nll["difference"]["low"] == pytest.approx(0.09) and 3 <= rows["plain"]["quality"]["nll"]["value"] <= 4
    fd = {name: row["quality"]["fd@shapes"] for name, row in rows.items()}
    assert fd["plain"]["value"] == fd["scd"]["value"]  # both recipes generate the same images
    none = {"value": 0, "low": 0, "high": 0, "p": None, "sample_effect": None, "simultaneous": None}
    assert fd["scd"]["difference"] == none and fd["plain"]["difference"] is None
    # The three seeds of a prompt are one observation of a share.
    scores = read_scores(tmp_path / "out")
    assert scores is not None and len(set(scores.prompts)) == 5
    own = share_of(scores.scores["attributes"]["plain"], scores.prompts).interval()
    found = rows["plain"]["quality"]["attributes"]
    assert (found["low"], found["high"], found["n"]) == (own.low, own.high, 15)
    assert rows["scd"]["quality"]["attributes"]["difference"]["simultaneous"]["comparisons"] == 2
    assert fd["plain"]["value"] < fd["lantern:delta=0.2"]["value"] < fd["lantern:delta=0.9"]["value"]
    assert fd["lantern:delta=0.9"]["difference"]["low"] > 0
    assert all(q["low"] <= q["value"] <= q["high"] and q["n"] == 15 for q in fd.values())
    assert fd["plain"]["extractor"].startswith("shapes-")
    assert record["schema_version"] == 2 and record["environment"]["mmspec"] == mmspec.__version__
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("| recipe") and len(printed) == 6
    with (tmp_path / "out" / "results.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["recipe"] for line in lines] == list(rows)
    assert float(lines[3]["fd@shapes_low"]) == fd["lantern:delta=0.9"]["low"]


def test_distances_are_those_of_the_images_in_the_folder(pipe: Pipe, tmp_path: Path) -> None:
    record = evaluate(tmp_path)
    extractor = ClassifierExtractor("shapes", classifier())
    samples = Journal(tmp_path).read()

    def features(recipe: str, offset: int = 0) -> Any:
        prompts, seeds = record["config"]["prompts"], record["config"]["seeds"]
        wanted = [samples[recipe, prompt, seed + offset] for prompt in prompts for seed in seeds]
        return extract(extractor, [np.asarray(Image.open(tmp_path / sample.file)) for sample in wanted])

    reference = features("plain", 2**40)
    for row in record["rows"]:
        expected = frechet_distance(features(row["recipe"]), reference)
        assert row["quality"]["fd@shapes"]["value"] == pytest.approx(expected, abs=1e-6)


def test_recipes_take_turns_on_the_same_seeds(pipe: Pipe, tmp_path: Path) -> None:
    evaluate(tmp_path, "--metrics", "attributes", "--limit", "2")
    recipes = ["plain", "scd", "lantern:delta=0.2", "lantern:delta=0.9"]
    timed = list(pipe.calls)
    for name in recipes[:3]:  # the first call is made twice; the last recipe differs in its rule's strength only
        first = next(i for i, call in enumerate(timed) if call[0] == name)
        assert timed[first] == timed[first + 1]
        del timed[first]
    turns = [timed[i : i + 4] for i in range(0, len(timed), 4)]
    assert len(turns) == 6
    for i, turn in enumerate(turns):
        assert [name for name, _, _ in turn] == recipes[i % 4 :] + recipes[: i % 4]
        assert len({unit[1:] for unit in turn}) == 1
    assert len({seed for _, _, seed in timed}) == 6  # prompts under one seed do not share random numbers
    found = json.loads((tmp_path / "samples-0.jsonl").read_text().splitlines()[0])
    with Image.open(tmp_path / found["file"]) as image:
        assert int(image.info["seed"]) == found["drawn"] != found["seed"]


def test_a_stopped_run_continues(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = evaluate(tmp_path / "whole")
    pipe.calls.clear()
    pipe.fail_at = 24
    capsys.readouterr()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a process of a shell's background
    try:
        assert main(arguments(tmp_path / "out")) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == (
        "",
        "mmspec: stopped too early for results: every recipe has finished 1 of 5 prompts, and metric 'fd@shapes' needs "
        "at least 4 samples (prompts times seeds): its interval is computed on halves of them, and a half needs 2; "
        "there are 3\n"
        f"mmspec: '{tmp_path / 'out'}' keeps its finished samples; the same command continues\nmmspec: interrupted\n",
    )
    journal = tmp_path / "out" / "samples-0.jsonl"
    finished = Journal(tmp_path / "out").read()
    assert 15 < len(finished) < 24
    with journal.open("ab") as file:  # killed while writing a line
        file.write(b'{"recipe": "scd", "prom')
    lost = next(iter(finished.values()))
    (tmp_path / "out" / lost.file).unlink()
    pipe.calls.clear()
    pipe.fail_at = None
    again = evaluate(tmp_path / "out")
    # The missing ones, the lost one, and a warm-up of each recipe but the last, which is like the one before it.
    assert len(pipe.calls) == 5 * 15 - len(finished) + 1 + 3
    kept = {(s.recipe, s.prompt, s.drawn) for s in finished.values() if s.key != lost.key}
    assert len(kept) == len(finished) - 1 and not kept & set(pipe.calls[3:])
    assert again["rows"] == whole["rows"]
    pipe.calls.clear()
    assert evaluate(tmp_path / "out")["rows"] == whole["rows"]
    assert pipe.calls == []


STOPPED = """
import sys, time
from pathlib import Path
import fake_pipe

class Hanging(fake_pipe.Pipe):
    def __call__(self, *arguments, **options):
        if len(self.calls) == 28:
            Path(sys.argv[1]).touch()
            time.sleep(600)
        return super().__call__(*arguments, **options)

fake_pipe.install(Hanging())
from mmspec.cli.app import main
sys.exit(main(sys.argv[2:]))
"""


def search_path(root: Path) -> str:
    """`PYTHONPATH` of a process that imports `fake_pipe`."""
    return os.pathsep.join(str(root / folder) for folder in (".", "tests/helpers", "examples/embedded"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_has_the_results_of_what_is_finished(
    number: signal.Signals, pipe: Pipe, tmp_path: Path, root: Path
) -> None:
    """It stops in its third group of two samples: those of the first prompt and of a part of the second are there."""
    out, reached = tmp_path / "out", tmp_path / "reached"
    options = [*arguments(out), "--metrics", "attributes,nll", "--batch", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": search_path(root)}
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(reached), *options],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background
    ) as process:
        try:
            while not reached.exists():
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            process.send_signal(number)
            printed, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert errors == (
        "mmspec: stopped after 1 of 5 prompts; measuring these\n"
        f"mmspec: '{out}' keeps its finished samples; the same command continues\nmmspec: interrupted\n"
    )
    stopped = read_results(out)
    assert printed == table(stopped["rows"], 2) + "\n"
    assert stopped["planned_prompts"] == 5 and len(stopped["config"]["prompts"]) == 1
    assert [row["speed"]["samples"] for row in stopped["rows"]] == [3] * 4
    note = "Stopped after 1 of 5 prompts"
    assert note in (out / "report.html").read_text() and note in markdown([ReportRun("", stopped, out)])
    # As an evaluation of these prompts, from the same samples; then it continues.
    assert main([*options, "--limit", "1"]) == 0 and pipe.calls == []
    short_one = read_results(out)
    assert short_one["rows"] == stopped["rows"] and short_one["planned_prompts"] is None
    assert note not in (out / "report.html").read_text()
    assert main(options) == 0
    assert read_results(out)["rows"][0]["speed"]["samples"] == 15


def test_a_stopped_run_leaves_results_of_more_prompts(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*arguments(tmp_path), "--metrics", "attributes"]
    assert main([*options, "--recipes", "scd"]) == 0
    before = (tmp_path / "results.json").read_text()
    monkeypatch.setattr("signal.raise_signal", default_interrupt)
    pipe.calls, pipe.fail_at = [], 11
    assert main(options) == 130
    assert "mmspec: stopped after 1 prompts; the results are still those of more\n" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_text() == before


def test_an_interrupt_while_a_stopped_run_is_measured_ends_it(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.raise_signal", default_interrupt)
    monkeypatch.setattr(exactness, "check", default_interrupt)
    pipe.fail_at = 40
    assert main([*arguments(tmp_path), "--metrics", "attributes"]) == 130
    assert not (tmp_path / "results.json").exists() and len(Journal(tmp_path).read()) > 30


def test_a_run_that_is_stopped_before_any_prompt_is_finished_says_so(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.raise_signal", default_interrupt)
    pipe.fail_at = 8
    assert main([*arguments(tmp_path), "--metrics", "attributes", "--batch", "4"]) == 130
    assert capsys.readouterr().err.splitlines() == [
        "mmspec: stopped too early for results: 4 of 60 samples are finished, and there is no prompt of which every "
        "recipe has finished them",
        f"mmspec: '{tmp_path}' keeps its finished samples; the same command continues",
        "mmspec: interrupted",
    ]
    assert not (tmp_path / "results.json").exists()


def default_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_prompts_are_finished_in_order() -> None:
    config = EvalConfig("toy", ("a", "b", "c"), ("plain", "scd"), (0, 1), ())
    done = {(recipe, prompt, seed) for recipe in config.recipes for prompt in config.prompts for seed in (0, 1)}
    assert finished_prompts(config, False, done) == 3
    assert finished_prompts(config, True, done) == 0
    assert finished_prompts(config, False, done - {("scd", "b", 1)}) == 1  # c is finished, and is not counted
    assert finished_prompts(config, False, done - {("plain", "a", 0)}) == 0


def test_rules_that_prepare_other_tables_are_warmed_up(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice for the first one, for one of two target calls where a table differs, not where only delta does."""
    monkeypatch.setattr(generation, "_PREPARING_CALLS", 1)
    recipes = ("lantern:k=2", "lantern:k=3", "lantern:delta=0.2,k=3")
    config = EvalConfig("toy", ("a",), recipes, (0,), ())
    toy: Any = pipe
    generate(toy, config, tmp_path, [[[(name, "a", 0)] for name in recipes]])
    assert [call[0] for call in pipe.calls] == [name for name in recipes[:2] for _ in range(2)] + [recipes[2]]
    seconds = {sample.seconds for sample in Journal(tmp_path).read().values()}
    assert len(seconds) == 1 and pipe.now == (2 + 1.5 + 1) * seconds.pop()


def test_the_journal_lists_no_sample_of_a_call_whose_files_cannot_be_written(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(content: bytes, path: Path) -> None:
        if path.name.endswith("-2.png") and "scd" in path.parent.name:
            raise OutputError(f"cannot write '{path}': No space left on device")
        write_durably(content, path)

    monkeypatch.setattr(generation, "write_durably", write)
    config = EvalConfig("toy", ("a",), ("plain", "scd"), (0, 1, 2, 3), (), batch=4)
    toy: Any = pipe
    with pytest.raises(OutputError, match="No space left"):
        generate(toy, config, tmp_path, generation.keys(config, False))
    assert {(sample.recipe, sample.seed) for sample in Journal(tmp_path).read().values()} == {
        ("plain", seed) for seed in range(4)
    }
    assert not list(tmp_path.rglob("*.part"))


def test_a_finished_run_accepts_more_recipes_and_metrics(pipe: Pipe, tmp_path: Path) -> None:
    evaluate(tmp_path, "--recipes", "scd")
    pipe.calls.clear()
    record = evaluate(tmp_path, "--metrics", f"{METRICS},captions")
    assert {call[0] for call in pipe.calls} == {"lantern:delta=0.2", "lantern:delta=0.9"}
    assert "captions" in record["rows"][0]["quality"]


def test_results_of_other_settings_are_not_mixed(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(tmp_path)
    assert main(arguments(tmp_path, "--temperature", "0.5")) == 2
    assert "holds results of temperature=None, not 0.5; name another folder" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    assert main(arguments(other)) == 2
    assert "is not empty and holds no config.yaml" in capsys.readouterr().err


def test_windows_of_another_width_are_not_mixed(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    evaluate(out, "--limit", "4")
    pipe.window = 32
    assert main(arguments(out)) == 2
    assert (
        f"'{out}' holds results of 'lantern:delta=0.2' with windows of 16 tokens, which has 32 now"
        in capsys.readouterr().err
    )


def test_a_configuration_file_has_the_keys_of_the_flags(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_flags = evaluate(tmp_path / "flags")
    file = tmp_path / "eval.yaml"
    values = {"recipes": RECIPES.split(","), "seeds": "0..2", "metrics": METRICS, "limit": 5, "temperature": 9.0}
    file.write_text(yaml.safe_dump(values))
    assert main(["eval", "--config", str(file), "-o", str(tmp_path / "file"), "--temperature", "0.7"]) == 0
    by_file = json.loads((tmp_path / "file" / "results.json").read_text())
    assert by_file["config"].pop("temperature") == 0.7 and by_flags["config"].pop("temperature") is None
    assert by_file["config"] == by_flags["config"] and by_file["rows"] == by_flags["rows"]
    resolved = tmp_path / "flags" / "config.yaml"  # the written configuration describes the same evaluation
    pipe.calls.clear()
    assert main(["eval", "--config", str(resolved), "-o", str(tmp_path / "flags")]) == 0
    assert pipe.calls == []
    for text, message in [
        ("recipe: x", "unknown key 'recipe' (did you mean 'recipes'"),
        ("- a", "must hold keys"),
        ("seeds: {a: 1}", "seeds must be a text or a list, not {'a': 1}"),
        ("prompts: [a, [b]]", "prompts must be a text or a list"),
        ("temperature: hot", "temperature must be a number, not 'hot'"),
        ("limit: 2.5", "limit must be a whole number, not 2.5"),
        ("limit: 0", "limit must be 1 or more"),
        ("batch: true", "batch must be a whole number, not True"),
        ("strict: 1", "strict must be true or false, not 1"),
        ("strict: 'no'", "strict must be true or false, not 'no'"),
        ("model: [x]", "model must be a text"),
        ("a: [", "cannot read"),
    ]:
        file.write_text(text)
        assert main(["eval", "--config", str(file), "-o", str(tmp_path / "x")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_no_speedup_without_the_gate(pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(recipe: Recipe) -> exactness.ExactnessResult:
        return exactness.ExactnessResult(
            tv=0.2, floor=0, limit=0.1 + (recipe.name != "scd"), samples=1, tokens_per_call=1
        )

    monkeypatch.setattr(exactness, "check", check)
    record = evaluate(tmp_path)
    found = {row["recipe"]: (row["gate"], row["speed"]["speedup"] is None) for row in record["rows"]}
    assert found["plain"] == (True, False) and found["scd"] == (False, True)
    assert found["lantern:delta=0.2"] == (None, False)
    assert "CHECK FAILED" in table(record["rows"], 1).splitlines()[3]
    lines = list(csv.DictReader(io.StringIO(as_csv(record["rows"], 1))))
    assert [lines[1][f"speedup{end}"] for end in ("", "_low", "_high")] == ["", "", ""] and lines[2]["speedup"]


def test_the_reference_may_be_a_file_or_a_folder(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(tmp_path / "plain", "--metrics", "attributes")
    sample = sample_path("plain", "a red circle above a blue square", 0)
    folder = (tmp_path / "plain" / sample).parent
    record = evaluate(tmp_path / "out", "--reference", str(folder), "--metrics", "fd@shapes,recall@shapes")
    assert record["rows"][0]["quality"]["fd@shapes"]["value"] == pytest.approx(0, abs=1e-9)
    assert record["rows"][0]["quality"]["recall@shapes"]["value"] == 1
    pipe.calls.clear()
    np.savez(tmp_path / "adm.npz", mu=np.zeros(6), sigma=np.eye(6))
    record = evaluate(tmp_path / "out", "--reference", str(tmp_path / "adm.npz"), "--metrics", "fd@shapes")
    assert record["rows"][0]["quality"]["fd@shapes"]["value"] > 1
    assert pipe.calls == []
    more = ["--reference", str(tmp_path / "adm.npz"), "--metrics", "kd@shapes"]
    assert main(arguments(tmp_path / "out", *more)) == 2
    assert "needs the reference's features" in capsys.readouterr().err


def test_calls_of_several_rows_give_the_same_samples(pipe: Pipe, tmp_path: Path) -> None:
    one, four = evaluate(tmp_path / "one"), evaluate(tmp_path / "four", "--batch", "4")
    assert len(Journal(tmp_path / "four").read()) == 75
    for mine, theirs in zip(one["rows"], four["rows"], strict=True):
        assert mine["quality"] == theirs["quality"]
        for key in ("tokens_per_call", "nfe", "gains", "accepted_at", "tv_bound"):
            assert mine["speed"][key] == theirs["speed"][key]
        # A batch takes as long as its first row: four samples are generated in the time of one.
        assert theirs["speed"]["seconds"] < 0.4 * mine["speed"]["seconds"]
        assert theirs["speed"]["p50"] == pytest.approx(mine["speed"]["p50"], rel=0.5)
    assert main(arguments(tmp_path / "four", "--batch", "2")) == 2


def test_one_call_gives_a_speedup_no_interval(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = evaluate(tmp_path, "--batch", "15")
    speedup = record["rows"][1]["speed"]["speedup"]
    assert speedup["low"] == speedup["value"] == speedup["high"]
    shown = f"{speedup['value']:.2f} (one call)"
    assert shown in capsys.readouterr().out
    with (tmp_path / "results.csv").open() as file:
        line = list(csv.DictReader(file))[1]
    assert float(line["speedup"]) == speedup["value"] and line["speedup_low"] == line["speedup_high"] == ""
    text = (tmp_path / "report.html").read_text()
    assert f"{shown} times plain decoding" in text and "has no interval" in text
    assert shown in markdown([ReportRun("", record, tmp_path)])
    assert evaluate(tmp_path / "more", "--batch", "14")["rows"][1]["speed"]["speedup"] != speedup
    assert "(one call)" not in capsys.readouterr().out


def test_changed_weights_are_detected(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = torch.nn.Linear(3, 2)
    vars(pipe)["network"] = network
    record = evaluate(tmp_path)
    assert len(record["config"]["fingerprint"]) == 12
    assert evaluate(tmp_path)["rows"] == record["rows"]
    with torch.no_grad():
        network.weight[1, 1] += 1e-3
    assert main(arguments(tmp_path)) == 2
    assert "holds results of other weights (fingerprint" in capsys.readouterr().err


def test_the_fingerprint_is_that_of_the_committed_results() -> None:
    committed = Path(__file__).parents[2] / "examples" / "speech" / "eval" / "results.json"
    assert fingerprint(load("spoken")) == json.loads(committed.read_text())["config"]["fingerprint"]


def test_an_unreadable_image_is_named(pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(tmp_path)
    path = next((tmp_path / "samples").rglob("*.png"))
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    record = evaluate(tmp_path)
    error = capsys.readouterr().err
    assert error.startswith(f"mmspec: left out: '{path}' is not a readable image") and error.count("\n") == 1
    assert record["skipped"] == [error.strip().removeprefix("mmspec: left out: ")]
    # The same prompt and seed of other recipes are left out too: all are compared on the same prompts and seeds.
    assert {row["quality"]["fd@shapes"]["n"] for row in record["rows"]} == {14}
    assert {row["speed"]["samples"] for row in record["rows"]} == {15}
    assert "1 file was left out" in (tmp_path / "report.html").read_text()
    assert main(arguments(tmp_path, "--strict")) == 2
    assert "1 of 75 files are unreadable: delete them and run again" in capsys.readouterr().err
    path.unlink()
    assert main(arguments(tmp_path, "--strict")) == 0
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--metrics", "fdd@shapes"], "unknown metric 'fdd@shapes'"),
        (["--metrics", "fd"], "unknown metric 'fd'"),
        (["--metrics", "fd@clop"], "unknown extractor 'clop'"),
        (["--metrics", "wer"], "extractor 'whisper' needs weights; name a folder or Hub id with --whisper"),
        (["--metrics", "fd@shapes,logmel"], "metric 'logmel' is of audio and 'fd@shapes' of images"),
        (["--temperature", "0.00001"], "temperature=1e-05 is not allowed"),
        (["--metrics", "fid"], "extractor 'inception' needs weights; name the weights file with --inception"),
        (["--metrics", ","], "--metrics: no metric named"),
        (["--limit", "1", "--seeds", "0"], "make 1 sample; a comparison needs at least 2"),
        (["--limit", "1", "--seeds", "0..2"], "'fd@shapes' needs at least 4 samples"),
        (["--seeds", "3..1"], "--seeds: '3..1' must be"),
        (["--recipes", "lantern:delta=0.1..2"], "lantern:delta=1.05 is not allowed"),
        (["--reference", "none.npz"], "--reference: 'none.npz' must be"),
    ],
)
def test_invalid_arguments_raise_before_anything_is_generated(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(arguments(tmp_path / "out", *more)) == 2
    assert message in capsys.readouterr().err
    assert pipe.calls == [] and not (tmp_path / "out").exists()


def test_ranges_expand() -> None:
    assert read_seeds("0..3, 7,2") == [0, 1, 2, 3, 7]
    assert [str(r) for r in expand("lantern:delta=0.2..0.6")] == [
        f"lantern:delta={d}" for d in (0.2, 0.3, 0.4, 0.5, 0.6)
    ]
    assert [r.knobs["delta"] for r in expand("lantern:delta=0.1..0.3/3,k=10")] == [0.1, 0.2, 0.3]
    assert [r.window for r in expand("scd:window=4..8")] == [4, 5, 6, 7, 8]
    assert [r.window for r in expand("scd:window=4..64/3")] == [4, 34, 64]
    assert [(r.window, r.knobs["coupling"]) for r in expand("scd:window=8|9,coupling=maximal|gumbel")] == [
        (8, "maximal"), (8, "gumbel"), (9, "maximal"), (9, "gumbel"),
    ]  # fmt: skip
    assert [str(r) for r in expand_all(["scd", "plain", "scd:window=default"])] == ["plain", "scd"]
    for text in ("scd:window=1..", "scd:window=4..8/1", "scd:window=a..b", f"scd:window=1..9/{'9' * 5000}"):
        with pytest.raises(ArgumentError, match="is not readable at"):
            expand(text)
    with pytest.raises(UnknownNameError):
        expand("scdd:window=4..8")
    for text in ("9" * 5000, "0.." + "9" * 5000, str(2**40), "0..x", ""):
        with pytest.raises(ArgumentError, match="must be a whole number below 2"):
            read_seeds(text)


def test_the_product_of_ranges_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("lantern:delta=0.1..0.5/40,window=2..1000/40", "scd:window=1..9999999/99999"):
        with pytest.raises(ArgumentError, match="recipes exceed the limit of 1,000; MMSPEC_MAX_RECIPES=N raises it"):
            expand(text)
    with pytest.raises(ArgumentError, match="--seeds: 10,001 seeds exceed the limit of 10,000"):
        read_seeds("0..4999,5000..10000")
    monkeypatch.setenv("MMSPEC_MAX_SEEDS", "10001")
    assert len(read_seeds("0..4999,5000..10000")) == 10001
    monkeypatch.setenv("MMSPEC_MAX_SEEDS", "many")
    with pytest.raises(ArgumentError, match="MMSPEC_MAX_SEEDS='many' must be a whole number"):
        read_seeds("0..9")


def test_an_invalid_journal_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "samples-0.jsonl").write_text('{"recipe": "x"}\n')
    with pytest.raises(ArgumentError, match=r"samples-0.jsonl' line 1 is not a sample record"):
        Journal(tmp_path).read()


def finished_sample(folder: Path) -> SampleRecord:
    """The record of a sample whose file exists."""
    path = sample_path("plain", "a", 0)
    (folder / path).parent.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / path)
    return SampleRecord(
        "plain", "a", 0, 0, path.as_posix(), 1.0, 1.0, 1.0, {}, 1, 1.0, [1], 0, 0.0, None, None, [], None, None
    )


def test_a_journal_drops_a_line_that_was_cut_off(tmp_path: Path) -> None:
    sample = finished_sample(tmp_path)
    journal = Journal(tmp_path)
    for left in (b"", b"{", b"x" * 200_000):
        (tmp_path / "samples-0.jsonl").write_bytes(left)
        journal.append([sample])
        journal.append([sample])
        assert (tmp_path / "samples-0.jsonl").read_bytes().count(b"\n") == 2
        assert journal.read() == {sample.key: sample}


def test_intervals_are_formatted_with_their_significant_digits() -> None:
    assert short({"value": 12.345, "low": 10.0, "high": 14.0}) == "12.35 [10.00, 14.00]"
    assert short({"value": 0.01234, "low": 0.0120, "high": 0.0127}) == "0.0123 [0.0120, 0.0127]"
    assert short({"value": 1, "low": 1, "high": 1}) == "1.000 [1.000, 1.000]"
    assert short({"value": 900.0, "low": 900.0 - 1e-12, "high": 900.0}) == "900.000 [900.000, 900.000]"
    assert short({"value": 0.01, "low": -1e-6, "high": 0.024}) == "0.010 [0.000, 0.024]"
    assert short({"value": 1e-5, "low": 0.0, "high": 2e-5}) == "1e-05 [0, 2e-05]"
    assert short(None) == "-"


def test_two_processes_with_uneven_shards_give_the_results_of_one(pipe: Pipe, tmp_path: Path, root: Path) -> None:
    alone = evaluate(tmp_path / "one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": search_path(root)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with ExitStack() as stack:
        both = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(root / "tests" / "helpers" / "fake_pipe.py"), *arguments(tmp_path / "two")],
                    cwd=root,
                    env=environment | {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(2)
        ]
        for process in both:
            stack.callback(process.kill)
        outs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outs
    assert outs[0][0].startswith("| recipe") and outs[1][0] == ""
    shared = json.loads((tmp_path / "two" / "results.json").read_text())
    assert shared["environment"]["processes"] == 2
    lines = [len((tmp_path / "two" / f"samples-{rank}.jsonl").read_text().splitlines()) for rank in range(2)]
    assert lines == [5 * 8, 5 * 7]
    for mine, theirs in zip(alone["rows"], shared["rows"], strict=True):
        for name, found in mine["quality"].items():
            for end in ("value", "low", "high"):
                assert theirs["quality"][name][end] == pytest.approx(found[end], abs=1e-6), name
        assert theirs["speed"]["speedup"] == pytest.approx(mine["speed"]["speedup"])


def test_names_of_a_recipe_may_be_alternatives() -> None:
    assert list(map(str, expand("scd|eagle|tree-eagle+lantern++:factor=2|5"))) == [
        "scd+lantern++:factor=2.0", "scd+lantern++:factor=5.0", "eagle+lantern++:factor=2.0",
        "eagle+lantern++:factor=5.0", "tree-eagle+lantern++:factor=2.0", "tree-eagle+lantern++:factor=5.0",
    ]  # fmt: skip
    assert list(map(str, expand("scd|plain"))) == ["scd", "plain"]
    with pytest.raises(UnknownNameError):
        expand("scd|+lantern")


def test_the_curve_s_configuration_can_be_read(root: Path) -> None:
    recipes = yaml.safe_load((root / "examples/quality_vs_speed/curve.yaml").read_text())["recipes"]
    assert len(expand_all(recipes)) == 1 + 3 + 9 * 5 * 3
