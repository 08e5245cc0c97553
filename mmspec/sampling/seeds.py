"""Seeds as users write them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mmspec.errors import ArgumentError


def draw(generator: torch.Generator | None) -> int:
    """A seed from a generator, or from torch's own."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device if generator else None))


def row_seeds(
    seed: Any, batch_size: int, generator: torch.Generator | Sequence[torch.Generator] | None = None
) -> list[int]:
    """One seed per row.

    Args:
        seed: An integer (row i gets `seed + i`), a list or array of one per row, or None, which draws one.
        batch_size: How many are needed.
        generator: Where None draws from: one, or one per row.

    Raises:
        ArgumentError: For what is no integer, or when there is not one for each row.
    """
    if seed is None:
        seed = (
            draw(generator) if generator is None or isinstance(generator, torch.Generator) else [*map(draw, generator)]
        )
    many = not isinstance(seed, str) and np.ndim(seed) > 0
    given = list(seed) if many else [seed]
    try:
        if any(isinstance(s, bool) for s in given):
            raise TypeError
        seeds = [operator.index(s) for s in given]
    except TypeError:
        raise ArgumentError(f"seed={seed!r} is not allowed; it must be an integer, or a list of one per row") from None
    if not many:
        return [seeds[0] + i for i in range(batch_size)]
    if len(seeds) != batch_size:
        raise ArgumentError(f"seed has {len(seeds)} values for {batch_size} rows; give one per row, or one integer")
    return seeds
