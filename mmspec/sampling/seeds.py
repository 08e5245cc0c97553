"""Seeds as users give them, as one integer per row."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch

from mmspec.arguments import shown
from mmspec.errors import ArgumentError

# The seed that stands for a random one in user interfaces and other engines (vLLM, llama.cpp).
RANDOM = -1


def random_seed(generator: torch.Generator | None) -> int:
    """A seed from a generator, or from torch's global one."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device if generator else None))


def pipeline_seed(prompt: str, seed: int) -> int:
    """The seed of 48 bits that a sample is generated with: prompts under one seed must not share their random numbers.

    If they did, a thousand prompts would be a single realization of the noise seen a thousand times, and recipes, which
    use the noise differently, would seem to differ by more than chance.
    """
    return int(hashlib.sha256(f"{seed} {prompt}".encode()).hexdigest()[:12], 16)


def check_generator(generator: Any) -> None:
    """Checks that a value is a generator, a list of them, or None.

    Raises:
        ArgumentError: If it is not.
    """
    each = generator if isinstance(generator, (list, tuple)) else [generator]
    if generator is not None and not (each and all(isinstance(one, torch.Generator) for one in each)):
        raise ArgumentError(
            f"generator={shown(generator)} is not allowed; it must be a torch.Generator, or a list of one per row"
        )


def row_seeds(
    seed: Any, batch_size: int, generator: torch.Generator | Sequence[torch.Generator] | None = None
) -> list[int]:
    """One seed per row.

    Args:
        seed: An integer (row i gets `seed + i`), a list or array of one per row, or None or -1 for a random one; -1 in
            a list is a random one for its row.
        batch_size: The number of rows.
        generator: Source of random seeds instead of `seed`: one generator, or one per row.

    Raises:
        ArgumentError: If a seed is not an integer of -1 or more, if the number of seeds or generators is not the number
            of rows, or if both are given.
    """
    check_generator(generator)
    if isinstance(seed, Integral) and seed == RANDOM:
        seed = None
    if seed is not None and generator is not None:
        raise ArgumentError("generator was given with seed; leave one of them out")
    if seed is None:
        if generator is None or isinstance(generator, torch.Generator):
            seed = random_seed(generator)
        elif len(generator) != batch_size:
            raise ArgumentError(
                f"generator is a list of {len(generator)} for {batch_size} rows; give one, or one per row"
            )
        else:
            seed = [random_seed(one) for one in generator]
    try:
        many = not isinstance(seed, str) and np.ndim(seed) > 0
        given = list(seed) if many else [seed]
        if any(isinstance(s, bool) for s in given):
            raise TypeError
        seeds = [operator.index(s) for s in given]
    except (TypeError, ValueError):  # the latter for lists of lists
        raise ArgumentError(
            f"seed={shown(seed)} is not allowed; it must be an integer, or a list of one per row"
        ) from None
    if wrong := [s for s in seeds if s < RANDOM]:
        raise ArgumentError(f"seed={wrong[0]} is not allowed; it must be 0 or more, or -1 for a random one")
    seeds = [random_seed(None) if s == RANDOM else s for s in seeds]
    if not many:
        return [seeds[0] + i for i in range(batch_size)]
    if len(seeds) != batch_size:
        raise ArgumentError(f"seed has {len(seeds)} values for {batch_size} rows; give one per row, or one integer")
    return seeds
