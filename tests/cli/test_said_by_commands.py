"""What commands say in their own options, and of what they could not do as asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from bulk_pipe import BulkPipe

import mmspec.cli.pipelines
from mmspec.cli.app import main
from mmspec.cli.eval import DEFAULTS, resolve
from mmspec.cli.option_names import in_options
from mmspec.cli.train_drafter import Bars
from mmspec.training.curve import CurvePoint

SPEAK = {"--codec", "--config", "--draft-model", "--style"}
IMAGE = {"--tokenizer"}


@pytest.mark.parametrize(
    ("message", "options", "shown"),
    [
        ("pass a DAC's folder as tokenizer=", SPEAK, "pass a DAC's folder as --codec"),
        ("pass tokenizer='kyutai/mimi'", SPEAK, "pass --codec kyutai/mimi"),
        ("give tokenizer='vae.pth' or the like", IMAGE, "give --tokenizer vae.pth or the like"),
        ("use config={'draft_model': ...}, or", SPEAK, "use --draft-model, or"),
        ("its second stage as config={'stage_2': ...}", SPEAK, "its second stage as --config stage_2=..."),
        ("pass config={'voice': FILE}, a file", SPEAK, "pass --config voice=FILE, a file"),
        ("your own as config={'codec': ...}", SPEAK, "your own as in Python config={'codec': ...}"),
        ("or pass config={...} (published)", IMAGE, "or pass in Python config={...} (published)"),
        ("detokenizer= and 'tokenizer' stay", SPEAK, "detokenizer= and 'tokenizer' stay"),
    ],
)
def test_errors_name_options(message: str, options: set[str], shown: str) -> None:
    assert in_options(message, options) == shown


def test_a_processor_is_asked_for_where_it_can_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)).save_pretrained(tmp_path)
    assert main(["speak", "hello", "-m", str(tmp_path), "-o", str(tmp_path / "x.wav")]) == 2
    assert "tokenizer to read texts; save it in the folder of the model\n" in capsys.readouterr().err


def test_a_limit_beyond_the_prompts_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(resolve({**DEFAULTS, "limit": 24}).prompts) == 16
    assert capsys.readouterr().err == "mmspec: --limit 24: there are 16 prompts, and all are used\n"
    assert len(resolve({**DEFAULTS, "limit": 16}).prompts) == 16
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("limit", "said"), [("3", True), ("2", False), ("1", False)])
def test_generate_says_a_limit_beyond_the_prompts(
    limit: str, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mmspec.cli.pipelines, "load_generator", lambda *args: BulkPipe())
    (tmp_path / "prompts.txt").write_text("a cat\n\na dog\n", encoding="utf-8")
    words = ["generate", "--prompts", str(tmp_path / "prompts.txt"), "-o", str(tmp_path / "out"), "-n", "2"]
    assert main([*words, "--limit", limit]) == 0
    expected = "mmspec: --limit 3: there are 2 prompts, and all are used\n"
    assert capsys.readouterr().err == (expected if said else "")


def test_nothing_goes_to_stdout_for_a_closed_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["image", "a red circle", "--seed", "-1", "-o", str(tmp_path / "x.png")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'x.png'}\n" and sys.stderr is None
    assert main(["image", "a red circle", "-m", "none"]) == 2


def test_an_untrained_head_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(quiet=False, sequences=1, steps=1, step=0) as bars:
        for step in (0, 10):
            bars.kept(CurvePoint(step, None, [0.5], 1.5))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "kept step 0, the best measured: 1.50 tokens per call; that is the drafter as it was before"
    )
    assert "--steps, --sequences or --prompts" in first
    assert second == "kept step 10, the best measured: 1.50 tokens per call"
