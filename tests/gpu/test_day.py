"""A GPU day, rehearsed: every part runs at tiny sizes, and what fails takes nothing else with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from gpu_bench import day
from gpu_bench.counts import FILE, predicted
from gpu_bench.page import page, table_of_changes
from gpu_bench.parts import PARTS
from gpu_bench.plan import SECONDS, WHOLE, tiny
from gpu_bench.published import PUBLISHED
from gpu_bench.records import record_of
from gpu_bench.regressions import changes

CPU = torch.device("cpu")
LAST = json.loads(day.LAST.read_text())


def record(parts: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
    """A record of parts, each with its records alone."""
    made = {name: {"status": "ok", "seconds": 1.0, "error": None, "records": found} for name, found in parts.items()}
    return {"date": "today", "settings": {"size": "tiny"}, "environment": {"device": device}, "parts": made}


def page_of(of: dict[str, Any]) -> str:
    """The page of a record, checked to be well-formed."""
    text = page(of, LAST)
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    return text


def test_every_part_but_the_tests_runs_at_tiny_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # every recipe is compared there by other tests
    found = {name: json.loads(json.dumps(list(PARTS[name](tiny(), CPU)))) for name in PARTS if name != "tests"}
    failed = [one for part in found.values() for one in part if "error" in one]
    assert not [one for one in failed if one.get("backend") not in ("efficient", "cudnn")]  # backends that no CPU has
    assert {one["kind"] for one in found["smoke"] if "tokens" in one} == {"tokens", "columns"}
    decodes = {(one["model"], one["rows"], one["recipe"]) for one in found["models"] if "recipe" in one}
    assert ("llamagen-xl", 1, "table:window=3") in decodes and ("musicgen-large", 2, "scd:window=4") in decodes
    assert {one["kernel"] for one in found["kernels"] if "kernel" in one} == {
        "fused_sample", "verify", "couple", "window"
    }  # fmt: skip
    assert len({one["cut"] for one in found["kernels"] if "cut" in one}) == 4
    of = record(found)
    counts = [{"model": "llasa-1b", "rows": 1, "width": 4, "launches": [[2, 100, 10]]}]
    of["parts"] |= record({"predicted": list(predicted(of, counts))})["parts"]
    text = page_of(of)
    assert "measured / predicted" in text and "A rehearsal" in text and "No viable backend" in text


@pytest.mark.parametrize("name", ["llamagen-xl", "llasa-1b", "musicgen-large"])
def test_drafts_are_accepted_about_as_often_as_those_of_trained_models(name: str) -> None:
    from gpu_bench.decoding import decoder

    longer = replace(tiny().models[name], length=64)
    if "grid_size" in longer.arguments:
        longer = replace(longer, arguments={**longer.arguments, "grid_size": 8})
    torch.manual_seed(0)
    made = decoder(longer, CPU, torch.float32)
    for recipe in ("scd:window=8", "draft:window=5", "table:window=5"):
        if "table" not in recipe or made.table is not None:
            assert 1.4 < made.decode(recipe, 2, 64).stats.tokens_per_call < 8, recipe


def test_the_limits_leave_twelve_minutes() -> None:
    assert list(SECONDS) == list(PARTS) and sum(SECONDS.values()) == day.TOTAL == 720
    assert set(WHOLE.models) <= set(PUBLISHED) and max(WHOLE.recipes) == 32 and max(WHOLE.batches) == 64


def test_a_case_that_fails_is_a_record() -> None:
    def fail() -> dict[str, Any]:
        raise RuntimeError("CUDA out of\nmemory")

    assert record_of({"case": 1}, fail) == {"case": 1, "error": "RuntimeError: CUDA out of memory"}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Python whose parts end badly: `models` hangs, all others crash, `kernels` after its first record."""
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$3" = kernels ]; then echo \'{"case": "copy", "bytes_per_second": 1}\' >>$6; fi\n'
        'printf \'{"case":\' >>$6\nif [ "$3" = models ]; then sleep 60; fi\necho "device-side assert" >&2\nexit 3\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setitem(SECONDS, "models", 0.5)
    return tmp_path


def test_a_part_that_fails_or_hangs_does_not_stop_the_next(parts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tiny", "--device", "cpu", "-o", str(parts / "day"), "--limit", "3"]
    assert day.main(["smoke", "models", *words]) == 1
    assert day.main(["kernels", *words]) == 1  # added to the others
    found = json.loads((parts / "day" / "gpu.json").read_text())["parts"]
    assert {name: one["status"] for name, one in found.items()} == {
        "smoke": "failed", "models": "timeout", "kernels": "failed", "predicted": "ok",
    }  # fmt: skip
    assert found["smoke"]["error"] == "device-side assert" and found["models"]["seconds"] < 30
    assert len(found["kernels"]["records"]) == 1 and not found["models"]["records"]
    assert "device-side assert" in (parts / "day" / "gpu.html").read_text()
    assert "case copy: bytes_per_second 2.436e+12 -> 1" in capsys.readouterr().out


def test_time_that_is_over_goes_to_no_part(parts: Path) -> None:
    assert day.run_part("kernels", "cpu", True, 0.5)["status"] == "skipped"


def test_what_regressed() -> None:
    case = {"model": "csm", "rows": 1, "width": 4}
    before = record({"models": [case | {"device": 1.0}, case | {"recipe": "scd", "memory": 4}], "kernels": [
        {"case": "copy", "bytes_per_second": 2.0}, {"kernel": "verify", "device": 1e-3}
    ]}, "H100")  # fmt: skip
    now = record({"models": [case | {"device": 1.05}, case | {"recipe": "scd", "memory": 5}], "kernels": [
        {"case": "copy", "bytes_per_second": 4.0}, {"kernel": "verify", "error": "OutOfMemoryError: no"}
    ]})  # fmt: skip
    found = changes(now, before)
    assert [(one.case, one.worse, one.regressed) for one in found] == [
        ("kernel verify", float("inf"), True),
        ("model csm, recipe scd, rows 1, width 4", 1.25, True),
        ("model csm, rows 1, width 4", 1.05, False),
        ("case copy", 0.5, False),
    ]
    text = table_of_changes(found, now, before)
    assert "2 of 4 cases regressed" in text and "ANOTHER DEVICE: H100 then, cpu now" in text


def test_the_last_record_is_compared_with_itself() -> None:
    found = changes(LAST, LAST)
    assert len(found) > 200 and not any(one.regressed for one in found)
    assert "measured over predicted: 0.92 to 1.76 over 60 steps" in table_of_changes(found, LAST, LAST)
    page_of(LAST)


def test_the_counts_are_those_of_the_steps_of_a_day() -> None:
    counted = {(one["model"], one["rows"]) for one in json.loads(FILE.read_text())}
    assert counted == {(name, rows) for name in WHOLE.models for rows in WHOLE.recipes}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cpu"], "there is no CUDA device; --tiny --device cpu rehearses on a CPU"),
        (["kernel"], "unknown part 'kernel'; it must be one of smoke, tests, models, embedded, kernels"),
    ],
)
def test_what_there_is_not(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit):
        day.main(words)
    assert message in capsys.readouterr().err


# Not modules that cannot be imported: transformers looks for some of these packages, and imports what it finds.
BARE = """
from importlib.machinery import PathFinder

HIDDEN = {"diffusers", "bs4", "ftfy", "pydantic", "soundfile", "torchmetrics", "torchaudio"}
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda _, name, *where: None if name in HIDDEN else find(name, *where))
"""


@pytest.mark.slow
def test_the_script_runs_where_most_packages_are_missing(root: Path, tmp_path: Path) -> None:
    """From the script, with parts in their own processes; models that need diffusers are records with an error."""
    (tmp_path / "sitecustomize.py").write_text(BARE)
    names = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}  # a bare machine's
    names |= {"PYTHONPATH": str(tmp_path), "PYTHON": sys.executable}
    words = [str(root / "examples/gpu/day.sh"), "--tiny", "--device", "cpu", "-o", str(tmp_path / "day")]
    done = subprocess.run(words, env=names, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "day" / "gpu.json").read_text())["parts"]
    assert {one["status"] for one in found.values()} == {"ok"} and found["tests"]["records"][-1]["skipped"] > 0
    assert not [one for name in ("smoke", "models", "embedded") for one in found[name]["records"] if "error" in one]
    ElementTree.fromstring((tmp_path / "day" / "gpu.html").read_text().removeprefix("<!DOCTYPE html>"))
