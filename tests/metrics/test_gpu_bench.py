"""`mmspec bench gpu`: every part runs at tiny sizes, and what fails takes nothing else with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from mmspec.cli.app import main
from mmspec.metrics.bench.gpu import process
from mmspec.metrics.bench.gpu.page import gpu_page
from mmspec.metrics.bench.gpu.parts import PARTS, record_of
from mmspec.metrics.bench.gpu.plan import SECONDS, WHOLE, tiny
from mmspec.metrics.bench.gpu.published import PUBLISHED

CPU = torch.device("cpu")
ENVIRONMENT: dict[str, Any] = {"device": "cpu", "torch": torch.__version__}


def records(name: str) -> list[dict[str, Any]]:
    """The records of a part at tiny sizes, as they come back from its file."""
    return [json.loads(json.dumps(one)) for one in PARTS[name](tiny(), CPU)]


def page_of(parts: dict[str, Any], size: str = "tiny") -> str:
    """The page of a record, checked to be well-formed."""
    text = gpu_page({"date": "today", "settings": {"size": size}, "environment": ENVIRONMENT, "parts": parts})
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    return text


def test_every_part_but_the_tests_runs_at_tiny_sizes() -> None:
    parts = dict[str, Any]()
    for name in PARTS:
        if name != "tests":
            parts[name] = {"status": "ok", "seconds": 1.0, "error": None, "records": records(name)}
    failed = [one for part in parts.values() for one in part["records"] if "error" in one]
    assert {one["backend"] for one in failed} <= {"efficient", "cudnn"}  # backends that no CPU has
    assert {one["kernel"] for one in parts["kernels"]["records"]} == {"fused_sample", "verify", "couple", "window"}
    assert len({one["cut"] for one in parts["kernels"]["records"]}) == 4
    assert {one["recipe"] for one in parts["loop"]["records"]} == {"plain", "scd:window=8", "scd:window=16"}
    steps = {(one["model"], one["rows"], one["width"]) for one in parts["steps"]["records"]}
    assert steps == {(one["model"], one["rows"], one["width"]) for one in parts["predicted"]["records"]}
    page = page_of(parts)
    assert "measured / predicted" in page and "A rehearsal" in page and "No viable backend" in page


def test_the_limits_leave_less_than_ten_minutes() -> None:
    assert set(SECONDS) == set(PARTS) and sum(SECONDS.values()) <= 570
    assert set(WHOLE.models) <= set(PUBLISHED)


def test_a_case_that_fails_is_a_record() -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("CUDA out of\nmemory")

    assert record_of({"case": 1}, fail) == {"case": 1, "error": "RuntimeError: CUDA out of memory"}


def test_what_a_part_has_finished_survives_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A part that writes a record and then crashes, one that hangs, and one for which no time is left."""
    script = tmp_path / "python"
    script.write_text(
        '#!/bin/sh\nprintf \'{"case": 1}\\n{"case":\' >> $6\n'
        'if [ "$3" = attention ]; then sleep 60; fi\necho "device-side assert" >&2\nexit 3\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setitem(SECONDS, "attention", 1.0)
    seen: list[str] = []
    found = process.run_parts("cpu", "tiny", ["speed", "attention"], 30.0, seen.append)
    found |= process.run_parts("cpu", "tiny", ["kernels"], 0.5, seen.append)
    assert seen == ["speed", "attention"]
    assert [found[name]["status"] for name in found] == ["failed", "timeout", "skipped"]
    assert found["speed"]["error"] == "device-side assert" and found["speed"]["records"] == [{"case": 1}]
    assert found["attention"]["records"] == [{"case": 1}] and found["attention"]["seconds"] < 30
    for part in found.values():
        part["records"] = []
    assert "device-side assert" in page_of(found, "whole")


@pytest.mark.slow
def test_the_command_runs_from_a_checkout_without_most_packages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("diffusers", "bs4", "ftfy", "pydantic", "soundfile", "torchmetrics", "torchaudio"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('it is not there')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert (
        main(
            [
                "bench",
                "gpu",
                "--tiny",
                "--device",
                "cpu",
                "--parts",
                "tests,steps,predicted",
                "-o",
                str(tmp_path / "report"),
            ]
        )
        == 0
    )
    record = json.loads((tmp_path / "report" / "gpu.json").read_text())
    assert {name: part["status"] for name, part in record["parts"].items()} == dict.fromkeys(
        ("tests", "steps", "predicted"), "ok"
    )
    assert record["parts"]["tests"]["records"][-1]["skipped"] > 0
    ElementTree.fromstring((tmp_path / "report" / "gpu.html").read_text().removeprefix("<!DOCTYPE html>"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench gpu --device cpu", "device='cpu' is not allowed without --tiny; it must be a CUDA device"),
        ("bench gpu --parts kernel", "unknown part 'kernel' (did you mean 'kernels'?)"),
    ],
)
def test_what_there_is_not(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err
