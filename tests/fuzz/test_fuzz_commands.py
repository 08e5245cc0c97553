"""Random command lines: each is accepted, or refused with one line, status 2, and nothing left behind."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from fuzzing import NUMBERS, TALLY, TEXTS, WHOLE, check_no_faults, run_command

from mmspec.cli.app import app

# A command line of each command that is right, or refused for want of a model only.
RIGHT: dict[str, list[str]] = {
    "image": ["a red circle above a blue square"],
    "speak": ["hello"],
    "music": ["x"],
    "check": ["plain", "--samples", "1000"],
    "eval": ["-o", "out", "--limit", "2", "--metrics", "attributes"],
    "generate": ["--prompts", "prompts.txt", "-o", "out", "--limit", "1"],
    "report": ["results"],
    "measure": ["images", "--metrics", "attributes", "--prompts", "prompts.txt"],
    "train-drafter": ["-o", "drafter", "--sequences", "4"],
    "train-judge": ["-o", "judge", "--metric", "clip"],
    "convert": ["garbage.safetensors", "-o", "converted"],
    "ls": [],
    "env": [],
    "bench image": ["--limit", "1"],
    "bench speak": ["--limit", "1"],
    "bench predict": ["--samples", "2"],
    "bench kernels": ["--batch", "1", "--window", "2", "--vocab", "8", "--repeats", "1"],
    "video": ["garbage.png", "-m", "garbage"],
    "export-drafter": ["no-drafter", "--verifier", "garbage", "-o", "exported"],
}
REFUSED = ("music", "video", "report", "train-judge", "convert", "export-drafter")
# Servers do not end.
LEFT_OUT = {"serve", "demo"}


def commands() -> dict[str, Any]:
    """The click commands by name."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for inner, each in getattr(command, "commands", {"": command}).items():
            found[f"{name} {inner}".strip()] = each
    assert found.keys() >= LEFT_OUT
    return {name: command for name, command in found.items() if name not in LEFT_OUT}


def value_of(parameter: Any, rng: random.Random) -> str:
    """A value of the type that an option asks for, or of another one."""
    # click's types, or the annotations that newer releases of typer keep instead.
    kind = repr(getattr(parameter, "type_descriptor", None) or parameter.type).lower()
    if rng.random() < 0.15:
        return rng.choice(TEXTS)
    return rng.choice(WHOLE if "int" in kind else NUMBERS if "float" in kind else TEXTS)


def line_of(name: str, command: Any, rng: random.Random) -> list[str]:
    """A right command line with one to three options or arguments added or replaced."""
    words = [*name.split(), *RIGHT[name]]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    for _ in range(rng.choice((1, 1, 1, 2, 3)) if options else 0):
        if rng.random() < 0.1:
            words.insert(rng.randrange(len(name.split()), len(words) + 1), rng.choice(TEXTS))
            continue
        option = rng.choice(options)
        flag = rng.choice([*option.opts, *option.secondary_opts])
        words += [flag] if option.is_flag else [flag, value_of(option, rng)]
    if not options:
        words.append(rng.choice(TEXTS))
    return words


def test_every_command_is_fuzzed() -> None:
    assert set(RIGHT) == set(commands())


@pytest.mark.usefixtures("workplace")
def test_right_commands_are_accepted() -> None:
    for name, arguments in RIGHT.items():
        expected = "refused" if name in REFUSED else "accepted"
        found = run_command("commands that are right", [*name.split(), *arguments])
        assert found in (expected, "known fault"), (name, TALLY.faults[-1:])


@pytest.mark.usefixtures("workplace")
def test_random_commands(rng: random.Random, count: int) -> None:
    before = len(TALLY.faults)
    known = commands()
    for _ in range(count * 3):
        name = rng.choice(list(known))
        run_command("command lines", line_of(name, known[name], rng))
    check_no_faults(before)


def test_refusals_of_a_real_process(workplace: Path, root: Path) -> None:
    for arguments in (
        ["image", "x", "-n", "100000000"],
        ["report", b"\xff"],
        ["eval", "-o", "out", "--config", "deep.yaml"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mmspec", *arguments],
            cwd=workplace,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 2 and done.stdout == b"", done.stderr
        assert done.stderr.startswith(b"mmspec: error: ") and done.stderr.count(b"\n") == 1
