"""Couplings of Jacobi decoding: new tokens for the rejected part of a window.

A coupling returns a token for every slot of the window, int64 [B, W]. Given all tokens to its left, it follows the
target distribution `p` of that slot. Slots that no row reuses need no new token and keep theirs. The next window reuses
the tokens after the resampled one as drafts and tests them with q := p.

The noise of `gumbel` outlives a window: it is that of a position, in every window. So no token before that position may
depend on it, nor may a draft that is tested there. A table of drafts which learns from all slots of a window, rejected
ones too, has read such noise. With windows of one width it drafts only after all slots that it has learned from; after
a narrower window it would draft before some of them (`refuse_leaks`).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.errors import ArgumentError
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG

Coupling = Callable[[Verdict, BatchState, WindowRNG], Tensor]


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot from p, independently of its draft (speculative Jacobi decoding, arXiv 2410.01699)."""
    return state.ops.couple_fresh(verdict.p, verdict, draws[RESAMPLE])


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot (MC-SJD, arXiv 2510.24211).

    This is a maximal coupling: no other keeps a draft token with a higher probability.
    """
    return state.ops.couple_maximally(verdict.p, verdict, draws[ACCEPT], draws[RESAMPLE])


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot by the Gumbel-max trick with noise that is fixed per position (arXiv 2510.24211)."""
    return state.ops.couple_by_noise(verdict.p, state.rng, draws.positions)


COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}


def refuse_leaks(context: DraftingContext) -> None:
    """Refuses a table that learns from rejected slots, if their noise is used again and widths change.

    Raises:
        ArgumentError: If the recipe has both.
    """
    recipe = context.recipe
    start = str(recipe.knobs["start"])
    learns = start in context.starts and context.starts[start].learns
    if recipe.auto and recipe.knobs.get("coupling") == "gumbel" and learns:
        raise ArgumentError(
            f"recipe '{recipe}' is not possible: with window=auto and coupling=gumbel, start={start} is not exact; "
            "take coupling=maximal, a fixed window, or another start"
        )
