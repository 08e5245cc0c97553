"""`mmspec image` in a subprocess, with a real pipeline: LlamaGen with random weights."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch
from PIL import Image

from mmspec.cli.app import main
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.shapes.domain import CONDITION_SLOTS, FEATURE_DIM
from mmspec.vision.shapes.text import ShapesTextEncoder
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

PROMPT = "a red circle above a blue square"
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}  # small models do not gain from more


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved pipeline."""
    torch.manual_seed(0)
    tokenizer = ShapesTokenizer(levels=(4, 4), channels=8, image_size=64)
    gpt = LlamaGenGPT(
        vocab_size=16, dim=32, n_layer=1, n_head=2, model_type="t2i", cls_token_num=CONDITION_SLOTS,
        caption_dim=FEATURE_DIM, grid_size=16,
    )  # fmt: skip
    gpt.init_weights(std=0.2)
    folder = tmp_path_factory.mktemp("model")
    LlamaGenPipeline(gpt, tokenizer, ShapesTextEncoder(), guidance_scale=2.0).save_pretrained(folder)
    return folder


def mmspec(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mmspec", *arguments], cwd=cwd, env=ONE_THREAD, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


def test_images_are_generated_without_messages(model: Path, tmp_path: Path) -> None:
    done = mmspec("image", PROMPT, "-m", str(model), "-n", "2", "-o", "x.png", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["outputs"] == ["x-0.png", "x-1.png"]
    assert result["stats"]["tokens"] == 512
    with Image.open(tmp_path / "x-1.png") as image:
        assert image.size == (64, 64)
        assert image.info["seed"] == "1"
        assert image.info["prompt"] == PROMPT


def test_unknown_words_are_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["image", "a red circl", "-m", str(model)]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "'circl'" in err and "'circle'" in err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_generating_writes_nothing(model: Path, tmp_path: Path) -> None:
    arguments = ["image", PROMPT, "-m", str(model), "-n", "256", "--recipe", "plain", "-o", "new"]
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 100))  # a terminal without width shows no bar
    process = subprocess.Popen(
        [sys.executable, "-m", "mmspec", *arguments],
        cwd=tmp_path,
        env=ONE_THREAD,
        stdout=subprocess.PIPE,
        stderr=inside,
        text=True,
        # Shells start background processes with interrupts ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(inside)
    shown = ""
    while "tokens per call" not in shown:
        shown += os.read(terminal, 4096).decode()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    with contextlib.suppress(OSError):  # read from a terminal whose other end is closed
        while chunk := os.read(terminal, 4096):
            shown += chunk.decode()
    os.close(terminal)
    assert (process.returncode, out) == (130, "")
    assert shown.rstrip().endswith("mmspec: interrupted")
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []
