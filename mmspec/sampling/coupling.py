"""Couplings of the tokens of a window with its drafts, as functions of distributions and random numbers.

`mmspec.drafters.coupling` applies them to a verdict; `mmspec.sampling.kernel_ops` implements them with Triton kernels.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import Verdict, ratio, residual, sample
from mmspec.sampling.rng import CounterRNG


def couple_fresh(p: Tensor, verdict: Verdict, resample_u: Tensor) -> Tensor:
    """Samples every reused slot from p, independently of its draft.

    Args:
        p: `verdict.p`, float32 [B, W, V].
        verdict: The result of the window.
        resample_u: float32 [B, W] in [0, 1).

    Returns:
        int64 [B, W].
    """
    first = first_reused(verdict)
    return torch.cat([verdict.tokens[:, :first], sample(p[:, first:], resample_u[:, first:])], dim=1)


def couple_maximally(p: Tensor, verdict: Verdict, accept_u: Tensor, resample_u: Tensor) -> Tensor:
    """Keeps the draft of every reused slot with probability min(1, p / q), and samples the others from the residual.

    Args:
        accept_u: float32 [B, W] in [0, 1), the random numbers of the tests.
        resample_u: float32 [B, W] in [0, 1).

    Returns:
        int64 [B, W].
    """
    first, m = first_reused(verdict), p.shape[1] - 1
    reused = slice(first, m)
    p_reused, q, x = p[:, reused], dense(verdict.draft.q[:, reused]), verdict.draft.tokens[:, reused]
    found = [verdict.tokens[:, :first]]
    if first < m:
        keep = accept_u[:, reused] < ratio(p_reused, q, x)
        resampled = sample(residual(p_reused, q), resample_u[:, reused], fallback=p_reused)
        found.append(torch.where(keep, x, resampled))
    # The last slot has no draft, so that its token is sampled from p itself.
    return torch.cat([*found, sample(p[:, m:], resample_u[:, m:])], dim=1)


def couple_by_noise(p: Tensor, rng: CounterRNG, positions: NDArray[np.int64]) -> Tensor:
    """Samples every slot by the Gumbel-max trick with noise that is fixed per position.

    Args:
        rng: The random numbers of the rows.
        positions: Host int64 [B, W].

    Returns:
        int64 [B, W].
    """
    return (p.log() + rng.gumbel(positions, p.shape[-1])).argmax(-1)


def couple_columns_by_noise(p: Tensor, rng: CounterRNG, positions: NDArray[np.int64]) -> Tensor:
    """As `couple_by_noise` for columns: int64 [B, W, K] from p [B, W, K, V], with noise of its own for each cell."""
    noise = rng.gumbel(positions, p.shape[2] * p.shape[3])
    return (p.log() + noise.unflatten(-1, p.shape[2:])).argmax(-1)


def first_reused(verdict: Verdict) -> int:
    """The first slot of the window that some row reuses, the one after its resampled token; at most the last slot."""
    return min(int(verdict.accepted.min()) + 1, verdict.p.shape[1] - 1)
