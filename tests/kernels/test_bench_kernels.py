"""`mmspec bench kernels` and `mmspec bench image --random-weights`: every way runs, and the record says where."""

from __future__ import annotations

import json

import pytest

from mmspec.cli.app import main
from mmspec.metrics.bench import steps as step_bench


def test_verification_is_timed_in_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench kernels --batch 2 --window 3 --vocab 50 --repeats 1 --json"
    assert main(words.split()) == 0
    record = json.loads(capsys.readouterr().out)
    assert [way["name"] for way in record["ways"]] == ["loop", "torch"]
    assert all(way["bytes"] == 2 * 2 * 4 * 50 * 4 and way["bandwidth"] > 0 for way in record["ways"])
    assert record["copy_bandwidth"] > 0 and record["environment"]["device"] and record["date"]


def test_steps_are_timed_on_random_weights(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_bench, "CONFIGS", {"tiny": (32, 1, 2, 8)})
    words = "bench image --random-weights --config tiny --batch 2 --repeats 1 --json"
    assert main(words.split()) == 0
    record = json.loads(capsys.readouterr().out)
    assert [step["window"] for step in record["steps"]["2"]] == [1, 16, 1, 16, 1]
    assert record["date"] and record["environment"]["torch"] and record["environment"]["device"]
    assert all(step["floor"] > 0 and "acceptance" not in step for step in record["steps"]["2"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench kernels --dtype float23", "unknown dtype 'float23' (did you mean 'float32'?)"),
        ("bench kernels --device cudda", "device='cudda' cannot be used"),
        ("bench image --random-weights --config llamagen-x", "unknown config 'llamagen-x' (did you mean"),
    ],
)
def test_what_there_is_not(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err
