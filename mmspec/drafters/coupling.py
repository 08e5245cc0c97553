"""Couplings of Jacobi decoding: new tokens for the rejected part of a window.

A coupling returns a token for every slot of the window, int64 [B, W]. Given all tokens to its left, it follows the
target distribution `p` of that slot. Slots that no row reuses need no new token and keep theirs. The next window reuses
the tokens after the resampled one as drafts and tests them with q := p.
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
    """Samples every slot from p, independently of its draft (speculative Jacobi decoding, arXiv 2410.01699)."""
    first = _first_reused(verdict)
    return torch.cat([verdict.tokens[:, :first], sample(verdict.p[:, first:], draws[RESAMPLE][:, first:])], dim=1)


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot (MC-SJD, arXiv 2510.24211).

    This is a maximal coupling: no other keeps a draft token with a higher probability.
    """
    first, m = _first_reused(verdict), verdict.p.shape[1] - 1
    reused = slice(first, m)
    p, q, x = verdict.p[:, reused], verdict.draft.q[:, reused], verdict.draft.tokens[:, reused]
    found = [verdict.tokens[:, :first]]
    if first < m:
        keep = draws[ACCEPT][:, reused] < ratio(p, q, x)
        found.append(torch.where(keep, x, sample(residual(p, q), draws[RESAMPLE][:, reused], fallback=p)))
    # The last slot has no draft, so that its token is sampled from p itself.
    return torch.cat([*found, sample(verdict.p[:, m:], draws[RESAMPLE][:, m:])], dim=1)


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot by the Gumbel-max trick with noise that is fixed per position (arXiv 2510.24211)."""
    noise = state.rng.gumbel(state.positions(verdict.p.shape[1]), verdict.p.shape[-1])
    return (verdict.p.log() + noise).argmax(-1)


def _first_reused(verdict: Verdict) -> int:
    """The first slot of the window that some row reuses, the one after its resampled token; at most the last slot."""
    return min(int(verdict.accepted.min()) + 1, verdict.p.shape[1] - 1)


COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
