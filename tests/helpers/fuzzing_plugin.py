"""Fuzzing: a short, fixed run in the everyday suite, a long and random one by `pytest tests/fuzz --long -n 0 -s`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import TALLY, cut_short, hostile_files

SHORT, LONG = 40, 1500


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="fuzz for minutes, with new seeds")
    parser.addoption("--fuzz-seed", type=int, default=None, help="repeat a long run")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY.counts:
        terminalreporter.section("fuzzing")
        for line in TALLY.lines():
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Chooses the cases: the same ones every time, unless the run is a long one."""
    seed = request.config.getoption("--fuzz-seed", default=None)
    if seed is None:
        seed = random.SystemRandom().randrange(2**32) if request.config.getoption("--long", default=False) else 0
        print(f"\n--fuzz-seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def count(request: pytest.FixtureRequest) -> int:
    """Cases per test."""
    return LONG if request.config.getoption("--long", default=False) else SHORT


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with hostile files in it, and models that are cut short."""
    hostile_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path.parent / "cache"))
    cut_short(monkeypatch)
    yield tmp_path
