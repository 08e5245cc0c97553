"""Couplings of columns: new columns for the rejected part of a window; see `mmspec.drafters.coupling`.

A coupling returns a column for every slot of the window, int64 [B, W, K]. Given all columns to its left, it follows the
target distribution `p` of that slot.
"""

from __future__ import annotations

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.drafters.coupling import Coupling
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot from p, independently of its draft."""
    return put(state.ops.sample_columns(verdict.p, draws), verdict.p, state, draws)


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot; see `mmspec.sampling.multi_codebook.couple_columns`."""
    return put(state.ops.couple_columns(verdict.p, verdict.draft, draws, verdict.counts), verdict.p, state, draws)


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every cell by the Gumbel-max trick with noise that is fixed per position and codebook."""
    return put(state.ops.couple_columns_by_noise(verdict.p, state.rng, draws.positions), verdict.p, state, draws)


def put(tokens: Tensor, p: Probs, state: BatchState, draws: WindowRNG) -> Tensor:
    """Sets the forced cells of columns int64 [B, W, K] that were sampled from `p`."""
    return state.ops.put(p, tokens, state.layout.forced, draws.positions)


COLUMN_COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
