"""Couplings of columns: new columns for the rejected part of a window; see `mmspec.drafters.coupling`.

A coupling returns a column for every slot of the window, int64 [B, W, K]. Given all columns to its left, it follows the
target distribution `p` of that slot.
"""

from __future__ import annotations

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.drafters.coupling import Coupling
from mmspec.sampling.coupling import couple_columns_by_noise
from mmspec.sampling.multi_codebook import couple_columns, sample_columns
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot from p, independently of its draft."""
    return put(sample_columns(verdict.p, draws), verdict.p, state, draws)


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot; see `mmspec.sampling.multi_codebook.couple_columns`."""
    return put(couple_columns(verdict.p, verdict.draft, draws, verdict.accepted), verdict.p, state, draws)


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every cell by the Gumbel-max trick with noise that is fixed per position and codebook."""
    return put(couple_columns_by_noise(verdict.p, state.rng, draws.positions), verdict.p, state, draws)


def put(tokens: Tensor, p: Tensor, state: BatchState, draws: WindowRNG) -> Tensor:
    """Sets the forced cells of columns int64 [B, W, K], unless kernels that know those of `p` have done so."""
    forced = state.layout.forced
    return tokens if forced is None or type(p) is not Tensor else forced.put(tokens, draws.positions)


COLUMN_COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
