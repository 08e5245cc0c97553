"""Carries of columns: what becomes of the drafts behind the first redraw; see `mmspec.drafters.carry`.

Each function returns a column for every slot of the window, int64 [B, W, K], whose law given everything to its left is
the target's law `p` of that slot.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.columns import chance, thin
from mmspec.drafters.carry import Carry
from mmspec.noise import ACCEPT, REDRAW, Draws
from mmspec.rows import Rows
from mmspec.verify import Verdict, ratio, sample


def fresh(verdict: Verdict, rows: Rows, draws: Draws) -> Tensor:
    """Draws every slot anew from p."""
    return put(sample(verdict.p, draws.places(REDRAW, 0, verdict.p.shape[2])), rows, draws)


def maximal(verdict: Verdict, rows: Rows, draws: Draws) -> Tensor:
    """Keeps each old column as often as any coupling of the joint laws can: the exact test on every slot."""
    p, draft = verdict.p, verdict.draft
    batch, width = p.shape[:2]
    # The laws of forced cells are certain on both sides, so that they cancel where nobody takes them out.
    keep = draws[ACCEPT][:, : width - 1] < chance(ratio, p[:, :-1], draft, None)
    # The free slot behind the last draft has nothing to take away.
    lost = torch.cat([~keep, torch.ones(batch, 1, dtype=torch.bool, device=p.device)], dim=1)
    row, slot = lost.nonzero(as_tuple=True)
    q = F.pad(draft.q, (0, 0, 0, 0, 0, 1))[row, slot]
    redrawn = thin(p[row, slot], q, draws.at(row.cpu().numpy(), slot.cpu().numpy()))
    tokens = F.pad(draft.tokens, (0, 0, 0, 1))
    tokens[row, slot] = redrawn
    return put(tokens, rows, draws)


def gumbel(verdict: Verdict, rows: Rows, draws: Draws) -> Tensor:
    """Draws every cell by the Gumbel-max trick with noise that is fixed per position and codebook."""
    width, codebooks, vocab_size = verdict.p.shape[1:]
    noise = rows.noise.gumbel(rows.positions(width), codebooks * vocab_size)
    return put((verdict.p.log() + noise.unflatten(-1, (codebooks, vocab_size))).argmax(-1), rows, draws)


def put(tokens: Tensor, rows: Rows, draws: Draws) -> Tensor:
    """Columns with the forced cells of the window in place."""
    forced = rows.layout.forced
    return tokens if forced is None else forced.put(tokens, draws.positions)


COLUMN_CARRIES: dict[str, Carry] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
