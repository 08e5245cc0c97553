"""Decoding on a device that is neither a CPU nor CUDA and has no float64, such as Apple's `mps`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmspec.sampling import numbers
from mmspec.sampling.numbers import upload
from mmspec.sampling.probs import widest
from mmspec.sampling.rng import CounterRNG


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


def test_copies_are_asynchronous_from_page_locked_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """On `mps` others read memory of the host that was freed (https://github.com/pytorch/pytorch/issues/189690)."""
    device, own, found = torch.device("meta"), torch.Tensor.to, list[bool]()

    def copying(tensor: torch.Tensor, *given: Any, non_blocking: bool = False) -> torch.Tensor:
        found.append(non_blocking)
        return own(tensor, *given)

    def every_copy() -> list[bool]:
        found.clear()
        array = np.arange(3)
        upload([array], device)
        numbers.on_device(array, device)
        numbers.copied(torch.zeros(3), device)
        CounterRNG([0], device).uniforms(array[None], 0)
        return found

    monkeypatch.setattr(torch.Tensor, "to", copying)
    assert every_copy() == [False] * 4
    monkeypatch.setattr(numbers, "page_locked", lambda host, device: host.clone())
    assert every_copy() == [True] * 4


def test_numbers_of_the_host_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph would copy the numbers of the time of its capture again and again."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        numbers.page_locked(torch.zeros(3), torch.device("cuda"))
