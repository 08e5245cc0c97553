"""The window of Jacobi recipes that name none: a table by what does not change while a model is loaded.

A window costs what the device reads and computes for it. What it gains is a property of the model, and known only
afterwards. Tokens per call rise by a fifth to two fifths from 16 to 32 tokens, and fall by a third from 16 to 8
(docs/benchmarks.md). So the width is that at which a call has not yet become dear:

- On a GPU a call of 32 tokens takes 1.0 to 1.35 times as long as one of a single token: the weights are read once.
- On a CPU one of 16 takes 1.4 to 2 times as long with weights that its cache holds, or in bfloat16.
- With float32 weights that it reads from memory, one of 16 takes 2.4 times as long, and of 8 rows 4 times: products of
  matrices bound it, and a window of 8 is as quick in one row and quicker in all others.

The number of rows, the load and the clock are not asked. So a seed gives the same tokens in every run on a kind of
device, alone and in company.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Protocol

import torch

from mmspec.decoding.no_gain import weights

log = logging.getLogger(__name__)

ON_GPU, ON_CPU, IN_FLOAT32 = 32, 16, 8
CACHE = 64 * 2**20  # bytes: more than the last cache of most processors holds


class NamedRecipe(Protocol):
    """A recipe, as far as its name and its window."""

    @property
    def name(self) -> str: ...

    @property
    def window(self) -> int: ...

    @property
    def window_by_model(self) -> bool: ...


def window_of(recipe: NamedRecipe, target: Any) -> int:
    """The recipe's window, or that of the table; what was chosen and why is logged once, at the level INFO."""
    if not recipe.window_by_model:
        return recipe.window
    width, why = default_window(target)
    _tell(f"recipe {recipe.name!r} reads windows of {width} tokens {why}; its knob window sets another width")
    return width


def default_window(target: Any) -> tuple[int, str]:
    """The width for a target, a depth decoder among them, and the reason."""
    if target.device.type != "cpu":
        return ON_GPU, f"on {target.device.type}"
    size = sum(weight.nbytes for weight in weights(target) if weight.dtype == torch.float32)
    if size > CACHE:
        return IN_FLOAT32, f"on a CPU with {size / 2**20:,.0f} MiB of float32 weights"
    return ON_CPU, "on a CPU"


@cache
def _tell(text: str) -> None:
    log.info(text)
