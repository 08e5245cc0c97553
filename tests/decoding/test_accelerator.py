"""Decoding on a device that is neither a CPU nor CUDA and has no float64, such as Apple's `mps`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmspec.sampling.precision import widest


@pytest.mark.slow
def test_tokens_are_those_of_a_cpu(tmp_path: Path, root: Path) -> None:
    """A tensor that is made on the CPU by accident, float64, or a call of `torch.cuda` fails there."""
    script, output = root / "tests" / "helpers" / "accelerator.py", tmp_path / "found.pt"
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    names = ["top-p", "tree", "emu3", "spoken"]
    done = subprocess.run(
        [sys.executable, script, output, *names], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert torch.load(output) == dict.fromkeys(names, "equal")


def test_devices_with_float64_use_it() -> None:
    assert widest(torch.device("cpu")) == widest(torch.device("cuda:1")) == torch.float64
