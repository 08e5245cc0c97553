"""Options that would be ignored beside others: every command refuses them by name."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from mmspec.cli.app import app, main
from mmspec.cli.modes import MODES, Alone, Needs

GENERATE, TRAIN = ["generate", "--status", "out"], ["train-drafter", "-o", "out"]
IGNORED: list[tuple[list[str], str]] = [
    ([*GENERATE, "--prompts", "p.txt"], "--status takes no --prompts; leave one of them out"),
    ([*GENERATE, "-o", "o", "-m", "spoken", "--seed", "3"], "--status takes no --output, --model, --seed; leave"),
    ([*GENERATE, "--log-every", "1"], "--status takes no --log-every"),
    (["generate", "--prompts", "p", "-o", "o", "--pack", "9"], "--pack requires --format webdataset or parquet"),
    (["bench", "image", "--random-weights", "-m", "shapes"], "--random-weights takes no --model"),
    (["bench", "image", "--random-weights", "--seed", "0"], "--random-weights takes no --seed"),
    (["bench", "image", "--config", "llamagen-b"], "--config requires --random-weights"),
    (["bench", "predict", "--prompt", "x", "--prompts", "p"], "--prompt takes no --prompts"),
    (["check", "-m", "x", "--samples", "2000"], "--model takes no --samples"),
    (["check", "-m", "x", "--latents"], "--model takes no --latents"),
    (["check", "scd", "--prompt", "x", "-o", "y"], "--prompt, --output requires -m/--model"),
    (["eval", "-o", "out", "--dry-run", "--json"], "--dry-run takes no --json"),
    (["measure", "d", "--metrics", "fid", "--save-reference", "x.npz", "--reference", "y"], "takes no --reference"),
    (["measure", "d", "e", "--metrics", "fd@shapes", "--save-reference", "x.npz"], "of one folder, not of 2"),
    (["report", "d", "--serve", "--axis", "speedup"], "--serve takes no --axis"),
    (["report", "d", "-o", "fig.svg"], "-o/--output: 'fig.svg' is the name of another format than html; add --format"),
    (["report", "d", "--format", "md", "-o", "t.tex"], "is the name of another format than md; add --format latex"),
    (["speak", "hello", "--draft-model", "nope"], "draft_model was given, but 'spoken' does not take it"),
    (["report", "d", "--port", "80"], "--port requires --serve"),
    (["report", "d", "--format", "md", "--metric", "nll"], "--metric requires --format svg or png"),
    (["speak", "hello", "--stream", "--batch-size", "2"], "--stream takes no --batch-size"),
    (["music", "rain", "--stream", "--batch-size", "2"], "--stream takes no --batch-size"),
    (["speak", "hello", "--voice-text", "x"], "--voice-text requires --voice-file"),
    (["serve", "spoken", "--allowed-local-media-path", "/"], "requires --allow-reference-audio"),
    ([*TRAIN, "--markov-rank", "8"], "--markov-rank requires --kind block"),
    ([*TRAIN, "--layers", "8"], "--layers requires --kind block, kangaroo, one-step, outer"),
    ([*TRAIN, "--kind", "retrieval", "--steps", "8", "--lr", "0.1"], "--steps, --lr requires a --kind other than"),
    ([*TRAIN, "--kind", "swift", "--no-keep-features"], "--no-keep-features requires a --kind other than"),
    ([*TRAIN, "--kind", "small", "--hidden", "8"], "--hidden requires a --kind that is a head"),
    (["train-judge", "-o", "out", "--clip", "x"], "--clip requires --metric clip"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), IGNORED, ids=[" ".join(words) for words, _ in IGNORED])
def test_what_would_be_ignored_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_table_names_options_that_there_are() -> None:
    group: Any = typer.main.get_command(app)
    for mode in MODES:
        command = group
        for word in mode.command.split():
            command = command.commands[word]
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        named = mode.options if isinstance(mode, Needs) else (mode.option, *(mode.takes or ()), *mode.leaves)
        assert {*named} <= known, mode
        assert not isinstance(mode, Alone) or (mode.takes is None) == bool(mode.leaves)


def test_a_default_is_not_an_option_that_was_given(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert main(["-v", "generate", "--status", str(tmp_path), "--json"]) == 2
    assert "--status takes no" not in capsys.readouterr().err
