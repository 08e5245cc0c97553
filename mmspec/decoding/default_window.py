"""The window of Jacobi recipes that name none: a table by what stays as it is while a model is loaded.

Tokens per call rise with the width, by how much is a property of the model and known only afterwards. What a call costs
is a property of the device. The table weighs measured costs against the tokens per call of the models of
docs/benchmarks.md, over one and four rows, with and without guidance:

- `scd` gains a fifth to two fifths more tokens per call from 32 tokens than from 16. On a GPU such a call takes hardly
  longer, on a CPU 1.3 to 1.5 times as long.
- `sjd` gains up to a tenth from 32, and often as much from 8 as from 16. With float32 weights that a CPU reads from
  memory, a call of 8 tokens takes 0.6 to 0.8 times as long as one of 16. Where calls cost less, both are as quick.

The number of rows, the load and the clock are not asked. So a seed gives the same tokens in every run on a kind of
device, alone and in company.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import nn

from mmspec.decoding.resources import ChosenRecipe

log = logging.getLogger(__name__)

USUAL, COUPLED_ON_GPU, RESAMPLED_IN_FLOAT32 = 16, 32, 8
CACHE = 64 * 2**20  # bytes: more than the last cache of most processors holds


def window_of(recipe: ChosenRecipe, target: Any) -> int:
    """The recipe's window, or that of the table. What differs from the usual width is logged once, at the level INFO.

    Args:
        recipe: The recipe.
        target: A target, or a model of frames, whose depth decoder `reader` reads the windows.
    """
    if not recipe.window_by_model:
        return recipe.window
    if "coupling" in recipe.knobs:
        if target.device.type == "cpu":
            return USUAL
        _tell(f"recipe {recipe.name!r} reads {COUPLED_ON_GPU} tokens per call, since it runs on {target.device.type}")
        return COUPLED_ON_GPU
    if target.device.type != "cpu":
        return USUAL
    size = sum(weight.nbytes for weight in weights(getattr(target, "reader", target)) if weight.dtype == torch.float32)
    if size <= CACHE:
        return USUAL
    _tell(
        f"recipe {recipe.name!r} reads {RESAMPLED_IN_FLOAT32} tokens per call, since a CPU reads "
        f"{size / 2**20:,.0f} MiB of float32 weights for it"
    )
    return RESAMPLED_IN_FLOAT32


def weights(target: Any) -> list[nn.Parameter]:
    """The weights of a module, or of the modules of a target and of the targets that it wraps."""
    found, wrapped, seen = dict[int, nn.Parameter](), [target], set[int]()
    while wrapped:
        each = wrapped.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for part in (each, *getattr(each, "__dict__", {}).values()):
            if isinstance(part, nn.Module):
                found |= {id(weight): weight for weight in part.parameters()}
            elif hasattr(part, "prefill"):
                wrapped.append(part)
    return list(found.values())


@cache
def _tell(text: str) -> None:
    log.info("%s; its knob window sets another width", text)
