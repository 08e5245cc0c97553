"""Carries: what becomes of the drafts behind the first redraw.

Each function returns a token for every slot of the window, int64 [B, W], whose law given everything to its left is the
target's law `p` of that slot. That is why the next iteration tests it against q := p.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mmspec.noise import ACCEPT, REDRAW, Draws
from mmspec.rows import Rows
from mmspec.verify import Verdict, ratio, residual, sample

Carry = Callable[[Verdict, Rows, Draws], Tensor]


def fresh(verdict: Verdict, rows: Rows, draws: Draws) -> Tensor:
    """Draws every slot anew from p: Speculative Jacobi Decoding (Teng et al. 2024, arXiv 2410.01699)."""
    return sample(verdict.p, draws[REDRAW])


def maximal(verdict: Verdict, rows: Rows, draws: Draws) -> Tensor:
    """Keeps each old draft as often as any coupling can: the exact test on every slot (MC-SJD, arXiv 2510.24211)."""
    p, draft = verdict.p, verdict.draft
    m = p.shape[1] - 1
    keep = draws[ACCEPT][:, :m] < ratio(p[:, :m], draft.q, draft.tokens)
    # The free slot behind the last draft has nothing to take away.
    redrawn = sample(residual(p[:, :m], draft.q), draws[REDRAW][:, :m], fallback=p[:, :m])
    return torch.cat([torch.where(keep, draft.tokens, redrawn), sample(p[:, m:], draws[REDRAW][:, m:])], dim=1)


def gumbel(verdict: Verdict, rows: Rows, draws: Draws) -> Tensor:
    """Draws every slot by the Gumbel-max trick with noise that is fixed per position (same paper)."""
    noise = rows.noise.gumbel(rows.positions(verdict.p.shape[1]), verdict.p.shape[-1])
    return (verdict.p.log() + noise).argmax(-1)


CARRIES: dict[str, Carry] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
