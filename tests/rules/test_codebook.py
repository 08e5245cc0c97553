"""Tables of nearest tokens: from the codebooks of every kind of codec, and computed by concurrent processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_codecs as tiny
import torch
from safetensors.torch import load_file

from mmspec.audio.codecs import codec_of
from mmspec.codebook import Codebook, nearest
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

CODECS: dict[str, Callable[[], Any]] = {
    "encodec": tiny.encodec, "dac": tiny.dac, "mimi": tiny.mimi, "x-codec2": tiny.xcodec2, "higgs": tiny.higgs,
}  # fmt: skip


@pytest.mark.parametrize("name", CODECS)
def test_every_codec(name: str) -> None:
    for table in codec_of(CODECS[name]()).tables():
        found = nearest(Codebook(table), 3)
        assert found.dtype == torch.int32 and found.shape == (len(table), 3)
        distance = torch.cdist(table.double(), table.double()).fill_diagonal_(torch.inf)
        # Digits have many neighbors at the same distance: compare distances, not tokens.
        expected = distance.sort(dim=1).values[:, :3]
        torch.testing.assert_close(distance.gather(1, found.long()), expected, atol=1e-5, rtol=1e-5)


def test_nearest_digits_are_one_level_away() -> None:
    digits = ShapesTokenizer(levels=(5, 5, 3)).codebook()
    found = nearest(Codebook(digits), 2)
    apart = (digits[found.long()] - digits[:, None]).abs()
    assert ((apart > 1e-6).sum(-1) == 1).all() and apart.max() <= 0.5 + 1e-6


def test_concurrent_processes_agree(tmp_path: Path) -> None:
    script = (
        "import sys, torch; from mmspec.codebook import Codebook, nearest\n"
        "book = Codebook(torch.randn(2100, 4, generator=torch.Generator().manual_seed(0)))\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for k in range(2, 12): print(int(nearest(book, k).long().sum()), flush=True)\n"
    )
    env = {**os.environ, "MMSPEC_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    workers = [
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    outputs = [worker.communicate()[0] for worker in workers]
    assert outputs[0] == outputs[1] and len(outputs[0].splitlines()) == 10
    files = sorted(tmp_path.iterdir())
    assert len(files) == 10 and all(load_file(file)["table"].shape[0] == 2100 for file in files)
