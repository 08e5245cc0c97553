"""How commands load models: the dtype of the files, unless another one is named, and the options of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.cli.app import main
from mmspec.errors import ArgumentError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of `mmspec.load`, which loads nothing."""
    found: list[dict[str, Any]] = []

    def load(model: str, **options: Any) -> None:
        found.append({"model": model, **options})
        raise ArgumentError("loaded")

    monkeypatch.setattr("mmspec.load", load)
    return found


@pytest.mark.parametrize(
    "command",
    [
        ["image", "a cat"],
        ["speak", "one"],
        ["music", "piano"],
        ["bench", "image"],
        ["bench", "speak"],
        ["serve", "m", "--port", "0"],
        ["demo", "m", "--port", "0"],
        ["eval", "--prompts", "builtin", "--metrics", "nll"],
        ["generate", "--prompts", "PROMPTS"],
    ],
    ids=" ".join,
)
def test_weights_have_the_dtype_of_the_files_unless_another_one_is_named(
    command: list[str], calls: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("a cat\n")
    command = ["prompts.txt" if part == "PROMPTS" else part for part in command]
    if command[0] in ("eval", "generate"):
        command += ["-o", "out"]
    if command[0] not in ("serve", "demo"):
        command += ["-m", "m"]
    assert main(command) == 2 and main([*command, "--dtype", "bfloat16"]) == 2
    assert [call["model"] for call in calls] == ["m", "m"]
    assert [call["dtype"] for call in calls] == ["auto", torch.bfloat16]


def test_a_served_model_has_the_options_of_speak(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--codec", "c", "--style", "llasa", "--config", "frames=5", "--draft-model", "pair"]
    assert main(["serve", "m", "--port", "0", *options]) == 2
    config = {"style": "llasa", "draft_model": "pair", "frames": 5}
    assert calls == [{"model": "m", "device": "cpu", "tokenizer": "c", "config": config, "dtype": "auto"}]
    assert main(["serve", "m", "n", *options]) == 2
    assert "are for a single MODEL" in capsys.readouterr().err
    assert main(["serve", "m", "--codec", "c", "--tokenizer", "t"]) == 2
    assert "--tokenizer and --codec name the same file" in capsys.readouterr().err


def test_a_folder_to_learn_into_is_checked_before_models_are_loaded(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").touch()
    for folder, reason in (("no/where", "does not exist"), ("file", "it is a file, not a folder")):
        assert main(["serve", "no-such-model", "--port", "0", "--learn", str(tmp_path / folder)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("mmspec: error: --learn: cannot write") and reason in error


def test_the_shipped_model_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its draft model can be written, which that of the generator without diffusers cannot."""
    seen = list[Any]()

    def serve(application: Any, listener: Any) -> None:
        seen.append(application.models.all["shapes"].engine._online._model)

    monkeypatch.setattr("mmspec.serving.server.serve", serve)
    folder = tmp_path / "learned"
    assert main(["serve", "shapes", "--port", "0", "--recipe", "draft:window=8", "--learn", str(folder)]) == 0
    seen[0].save_pretrained(folder)
    assert (folder / "config.json").is_file()
