"""Couplings of Jacobi decoding: new tokens for the rejected part of a window.

A coupling returns a token for every slot of the window, int64 [B, W]. Given all tokens to its left, it follows the
target distribution `p` of that slot. The next window reuses the tokens after the resampled one as drafts and tests them
with q := p.
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
    return sample(verdict.p, draws[RESAMPLE])


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot (MC-SJD, arXiv 2510.24211).

    This is a maximal coupling: no other keeps a draft token with a higher probability.
    """
    p, draft = verdict.p, verdict.draft
    m = p.shape[1] - 1
    keep = draws[ACCEPT][:, :m] < ratio(p[:, :m], draft.q, draft.tokens)
    # The last slot has no draft, so that its token is sampled from p itself.
    resampled = sample(residual(p[:, :m], draft.q), draws[RESAMPLE][:, :m], fallback=p[:, :m])
    return torch.cat([torch.where(keep, draft.tokens, resampled), sample(p[:, m:], draws[RESAMPLE][:, m:])], dim=1)


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot by the Gumbel-max trick with noise that is fixed per position (arXiv 2510.24211)."""
    noise = state.rng.gumbel(state.positions(verdict.p.shape[1]), verdict.p.shape[-1])
    return (verdict.p.log() + noise).argmax(-1)


COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
