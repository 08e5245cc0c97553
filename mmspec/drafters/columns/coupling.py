"""Couplings of columns: new columns for the rejected part of a window; see `mmspec.drafters.coupling`.

A coupling returns a column for every slot of the window, int64 [B, W, K]. Given all columns to its left, it follows the
target distribution `p` of that slot.
"""

from __future__ import annotations

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.drafters.coupling import Coupling
from mmspec.sampling.multi_codebook import couple_columns
from mmspec.sampling.rejection import Verdict, sample
from mmspec.sampling.rng import RESAMPLE, WindowRNG


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot from p, independently of its draft."""
    return put(sample(verdict.p, draws.uniforms(RESAMPLE, 0, verdict.p.shape[2])), state, draws)


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot; see `mmspec.sampling.multi_codebook.couple_columns`."""
    return put(couple_columns(verdict.p, verdict.draft, draws), state, draws)


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every cell by the Gumbel-max trick with noise that is fixed per position and codebook."""
    width, codebooks, vocab_size = verdict.p.shape[1:]
    noise = state.rng.gumbel(state.positions(width), codebooks * vocab_size)
    return put((verdict.p.log() + noise.unflatten(-1, (codebooks, vocab_size))).argmax(-1), state, draws)


def put(tokens: Tensor, state: BatchState, draws: WindowRNG) -> Tensor:
    """Sets the forced cells of columns int64 [B, W, K]."""
    forced = state.layout.forced
    return tokens if forced is None else forced.put(tokens, draws.positions)


COLUMN_COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
