"""Carries of columns: what becomes of the drafts after the first resample; see `mmspec.drafters.coupling`.

Each function returns a column for every slot of the window, int64 [B, W, K], whose distribution given everything to its left is
the target distribution `p` of that slot.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.drafters.coupling import Coupling
from mmspec.sampling.multi_codebook import chance, thin
from mmspec.sampling.rejection import Verdict, ratio, sample
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Draws every slot anew from p."""
    return put(sample(verdict.p, draws.uniforms(RESAMPLE, 0, verdict.p.shape[2])), state, draws)


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Keeps each old column as often as any coupling of the joint distributions can: the exact test on every slot."""
    p, draft = verdict.p, verdict.draft
    batch, width = p.shape[:2]
    # The distributions of forced cells are certain on both sides, so that they cancel where nobody takes them out.
    keep = draws[ACCEPT][:, : width - 1] < chance(ratio, p[:, :-1], draft, None)
    # The free slot after the last draft has nothing to take away.
    lost = torch.cat([~keep, torch.ones(batch, 1, dtype=torch.bool, device=p.device)], dim=1)
    row, slot = lost.nonzero(as_tuple=True)
    q = F.pad(draft.q, (0, 0, 0, 0, 0, 1))[row, slot]
    resampled = thin(p[row, slot], q, draws.at(row.cpu().numpy(), slot.cpu().numpy()))
    tokens = F.pad(draft.tokens, (0, 0, 0, 1))
    tokens[row, slot] = resampled
    return put(tokens, state, draws)


def gumbel(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Draws every cell by the Gumbel-max trick with noise that is fixed per position and codebook."""
    width, codebooks, vocab_size = verdict.p.shape[1:]
    rng = state.rng.gumbel(state.positions(width), codebooks * vocab_size)
    return put((verdict.p.log() + rng.unflatten(-1, (codebooks, vocab_size))).argmax(-1), state, draws)


def put(tokens: Tensor, state: BatchState, draws: WindowRNG) -> Tensor:
    """Columns with the forced cells of the window in place."""
    forced = state.layout.forced
    return tokens if forced is None else forced.put(tokens, draws.positions)


COLUMN_COUPLINGS: dict[str, Coupling] = {"fresh": fresh, "maximal": maximal, "gumbel": gumbel}
