"""What commands log: one format, as much as is asked for, progress without a terminal."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from bulk_pipe import BulkPipe
from served import held_model

import mmspec.cli.pipelines
import mmspec.cli.serve
import mmspec.serving.server
from mmspec.cli.app import main
from mmspec.cli.logs import LogLevel, logged, set_level
from mmspec.cli.run_progress import RunProgress, rate_and_rest

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) [\w.]+: .+")


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    monkeypatch.setattr(mmspec.cli.pipelines, "load_generator", lambda *args: BulkPipe())
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"a secret {i}\n" for i in range(5)), encoding="utf-8")
    return ["generate", "--prompts", str(prompts), "-o", str(tmp_path / "out"), "--batch", "2"]


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [([], [], 0), (["-v"], [], 3), ([], ["-v"], 3), ([], ["-vv"], 3), (["--verbose"], [], 3)],
)
def test_verbose_stands_before_or_after_the_command(
    generate: list[str], before: list[str], after: list[str], lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*before, *generate, *after]) == 0
    err = capsys.readouterr().err
    found = err.splitlines()
    assert len(found) == lines and all(map(LINE.fullmatch, found)), err
    assert "secret" not in err
    assert logging.getLogger("mmspec").level == logging.NOTSET, "the level stays that of the caller"


@pytest.mark.parametrize(
    ("chosen", "before", "level"),
    [
        (None, logging.WARNING, logging.INFO),
        (None, logging.DEBUG, logging.DEBUG),
        (LogLevel.error, logging.WARNING, logging.ERROR),
        (LogLevel.debug, logging.WARNING, logging.DEBUG),
    ],
)
def test_levels(chosen: LogLevel | None, before: int, level: int) -> None:
    with logged():
        logging.getLogger("mmspec").setLevel(before)
        set_level(chosen, LogLevel.info)
        assert logging.getLogger("mmspec").level == level


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with logged(), RunProgress(1000, "samples", quiet=False, every=60, done=100, clock=lambda: now) as progress:
        for _ in range(3):
            now += 40
            progress.update(80, "scd")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" INFO mmspec.cli.run_progress: 260 of 1,000 samples, 2 samples/s, 06:10 left, scd")


@pytest.mark.parametrize(("quiet", "every"), [(True, 1.0), (False, 0.0)])
def test_no_progress(quiet: bool, every: float, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with logged(), RunProgress(10, "runs", quiet=quiet, every=every, clock=lambda: now) as progress:
        now = 1000.0
        progress.update()
    assert capsys.readouterr().err == ""


def test_progress_of_a_part_counts_from_its_own_start(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with logged(), RunProgress(100, "steps", quiet=False, every=1, clock=lambda: now) as progress:
        now = 1000.0
        progress.restart()
        now = 1005.0
        progress.update(10)
    assert "10 of 100 steps, 2 steps/s, 00:45 left\n" in capsys.readouterr().err


def test_progress_with_a_closed_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr", None)
    now = 0.0
    with logged(), RunProgress(10, "runs", quiet=False, every=1, clock=lambda: now) as progress:
        now = 2.0
        progress.update()
        progress.write("a line")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "command", ["generate", "eval", "bench image", "bench speak", "bench predict", "train-drafter", "train-judge"]
)
def test_long_commands_take_log_every(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--log-every", "-1"]) == 2
    assert "'--log-every'" in capsys.readouterr().err


def test_lines_of_progress(generate: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*generate, "--log-every", "1e-9"]) == 0
    found = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1].split(",")[0] for line in found] == [f"{n} of 5 samples" for n in (2, 4, 5)]


def test_rate_and_rest() -> None:
    assert rate_and_rest(1, 40.0, 3, "runs") == "0.025 runs/s, 02:00 left"


@pytest.mark.parametrize(
    ("words", "level"),
    [
        (["demo", "--no-browser"], logging.WARNING),
        (["demo", "--no-browser", "-v"], logging.INFO),
        (["-vv", "demo", "--no-browser"], logging.DEBUG),
        (["serve", "shapes"], logging.INFO),
        (["serve", "shapes", "-vv"], logging.DEBUG),
        (["serve", "shapes", "-v", "--log-level", "error"], logging.ERROR),
    ],
)
def test_servers_log_requests_as_asked(words: list[str], level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(mmspec.cli.serve, "_load", lambda *args: held_model()[0])
    monkeypatch.setattr(
        mmspec.serving.server, "serve", lambda *_: found.append(logging.getLogger("mmspec").getEffectiveLevel())
    )
    assert main([*words, "--port", "0"]) == 0
    assert found == [level]
