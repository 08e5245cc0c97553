"""The threads of commands: as told, else one for the models of the package; and as before when a command has ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import typer
from bulk_pipe import BulkPipe

import mmspec.cli.pipelines
from mmspec.cli.app import app, main
from mmspec.cli.model_options import DType
from mmspec.cli.shared_options import SHARED, share_options
from mmspec.cli.threads import VARIABLE, own_threads, suit_threads


@pytest.fixture(autouse=True)
def three(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch has three threads, and no variable says how many."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def test_every_command_takes_the_shared_options() -> None:
    command: Any = typer.main.get_command(app)
    share_options(command)
    for group in (command, command.commands["bench"]):
        for name, one in group.commands.items():
            assert {*SHARED} <= {parameter.name for parameter in one.params}, name


@pytest.mark.parametrize(
    ("before", "after", "variables", "model", "count"),
    [
        ([], [], {}, "shapes", 1),
        ([], [], {}, "spoken", 1),
        ([], [], {}, "a/folder", 3),
        ([], ["--threads", "2"], {}, "shapes", 2),
        (["--threads", "2"], [], {}, "shapes", 2),
        (["--threads", "2"], ["--threads", "4"], {}, "a/folder", 4),
        ([], [], {VARIABLE: "2"}, "shapes", 2),
        (["--threads", "4"], [], {VARIABLE: "2"}, "shapes", 4),
        ([], ["--threads", "4"], {VARIABLE: "2"}, "a/folder", 4),
        ([], [], {"OMP_NUM_THREADS": "3"}, "shapes", 3),
        ([], ["--threads", "2"], {"OMP_NUM_THREADS": "3"}, "shapes", 2),
    ],
)
def test_a_command_computes_in_so_many_threads(
    before: list[str],
    after: list[str],
    variables: dict[str, str],
    model: str,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    found: list[int] = []

    def load(name: str, device: str, *_: Any) -> BulkPipe:
        mmspec.cli.pipelines.dtype_of(name, DType.auto, device)
        found.append(torch.get_num_threads())
        return BulkPipe()

    monkeypatch.setattr(mmspec.cli.pipelines, "load_generator", load)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "prompts.txt").write_text("a cat\n")
    words = ["generate", "--prompts", str(tmp_path / "prompts.txt"), "-o", str(tmp_path / "out"), "-m", model]
    assert main([*before, *words, *after]) == 0
    assert found == [count]


@pytest.mark.parametrize(("models", "count"), [(["shapes", "spoken"], 1), (["shapes", "x"], 3), (["x", "shapes"], 3)])
def test_one_larger_model_takes_all_threads(models: list[str], count: int) -> None:
    with own_threads():
        for model in models:
            suit_threads(model)
        assert torch.get_num_threads() == count


@pytest.mark.parametrize(
    ("words", "variable", "message"),
    [
        (["ls", "--threads", "0"], None, "Invalid value for '--threads'"),
        (["ls", "--threads", "two"], None, "Invalid value for '--threads'"),
        (["--threads", "-1", "ls"], None, "Invalid value for '--threads'"),
        (["ls", "--threads", "99999"], None, "--threads: 99,999 threads exceed the limit of 1,024; MMSPEC_MAX"),
        (["ls"], "two", "'two'"),
        (["ls"], "0", VARIABLE),
    ],
)  # fmt: skip
def test_other_numbers_are_refused(
    words: list[str],
    variable: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
