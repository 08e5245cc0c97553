"""Carries: what becomes of the drafts after the first resample.

Each function returns a token for every slot of the window, int64 [B, W], whose distribution given everything to its left is the
target distribution `p` of that slot. That is why the next iteration tests it against q := p.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.rejection import Verdict, ratio, residual, sample
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG

Coupling = Callable[[Verdict, BatchState, WindowRNG], Tensor]


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Draws every slot anew from p: Speculative Jacobi Decoding (Teng et al. 2024, arXiv 2410.01699)."""
    return sample(verdict.p, draws[RESAMPLE])


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Keeps each old draft as often as any coupling can: the exact test on every slot (MC-SJD, arXiv 2510.24211)."""
    p, draft = verdict.p, verdict.draft
    m = p.shape[1] - 1
    keep = draws[ACCEPT][:, :m] < ratio(p[:, :m], draft.q, draft.tokens)
    # The free slot after the last draft has nothing to take away.
    resampled = sample(residual(p[:, :m], draft.q), draws[RESAMPLE][:, :m], fallback=p[:, :m])
    return torch.cat([torch.where(keep, draft.tokens, resampled), sample(p[:, m:], draws[RESAMPLE][:, m:])], dim=1)


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Draws every slot by the Gumbel-max trick with noise that is fixed per position (same paper)."""
    rng = state.rng.gumbel(state.positions(verdict.p.shape[1]), verdict.p.shape[-1])
    return (verdict.p.log() + rng).argmax(-1)


COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
