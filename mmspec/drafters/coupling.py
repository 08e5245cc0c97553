"""Couplings of Jacobi decoding: new tokens for the rejected part of a window.

A coupling returns a token for every slot of the window, int64 [B, W]. Given all tokens to its left, it follows the
target distribution `p` of that slot. Slots that no row reuses need no new token and keep theirs. The next window reuses
the tokens after the resampled one as drafts and tests them with q := p.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.coupling import couple_by_noise, couple_fresh, couple_maximally
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG

Coupling = Callable[[Verdict, BatchState, WindowRNG], Tensor]


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot from p, independently of its draft (speculative Jacobi decoding, arXiv 2410.01699)."""
    return couple_fresh(verdict.p, verdict, draws[RESAMPLE])


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot (MC-SJD, arXiv 2510.24211).

    This is a maximal coupling: no other keeps a draft token with a higher probability.
    """
    return couple_maximally(verdict.p, verdict, draws[ACCEPT], draws[RESAMPLE])


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot by the Gumbel-max trick with noise that is fixed per position (arXiv 2510.24211)."""
    return couple_by_noise(verdict.p, state.rng, draws.positions)


COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
