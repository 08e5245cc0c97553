"""The reference numbers under tests/golden, which the original implementations computed."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

# The variable names another set of the same form: other sizes, other weights.
GOLDEN = Path(os.environ.get("MMSPEC_GOLDEN", Path(__file__).parents[1] / "golden"))


def expected(folder: Path) -> dict[str, Tensor]:
    """Inputs and outputs of the model in a folder of `GOLDEN`."""
    return load_file(folder / "expected.safetensors")
