"""Fixtures: the devices on which kernels run."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device with the kernels, on a CPU in Triton's interpreter."""
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton's interpreter is off")
    monkeypatch.setenv("MMSPEC_KERNELS", "triton")
    torch.manual_seed(0)
    return torch.device(request.param)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of kernels are NaN or far from all numbers before, so that a missing write shows."""
    new_empty = Tensor.new_empty

    def poisoned(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        fresh = new_empty(self, *args, **kwargs)
        number = -(2**30) if fresh.itemsize >= 4 else -9
        return fresh.fill_(torch.nan if fresh.is_floating_point() else number)

    monkeypatch.setattr(Tensor, "new_empty", poisoned)
