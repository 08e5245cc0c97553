"""The reference numbers under tests/golden, which the original implementations computed."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

# The variable names another set of the same form: other sizes, other weights.
GOLDEN = Path(os.environ.get("MMSPEC_GOLDEN", Path(__file__).parents[1] / "golden"))


def expected(folder: Path) -> dict[str, Tensor]:
    """Inputs and outputs of the model in a folder of `GOLDEN`."""
    return load_file(folder / "expected.safetensors")


def waves(slots: int, width: int) -> Tensor:
    """Inputs float32 [1, slots, width] between -1 and 1 that no two slots share, too many to be stored."""
    return torch.arange(slots * width, dtype=torch.float64).mul(12.9898).sin().float().view(1, slots, width)
