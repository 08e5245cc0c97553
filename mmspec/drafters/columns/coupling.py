"""Couplings of columns: new columns for the rejected part of a window; see `mmspec.drafters.coupling`.

A coupling returns a column for every slot of the window, int64 [B, W, K]. Given all columns to its left, it follows the
target distribution `p` of that slot.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.drafters.coupling import Coupling
from mmspec.sampling.multi_codebook import acceptance_probs, thin
from mmspec.sampling.rejection import Verdict, ratio, sample
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG


def fresh(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Samples every slot from p, independently of its draft."""
    return put(sample(verdict.p, draws.uniforms(RESAMPLE, 0, verdict.p.shape[2])), state, draws)


def maximal(verdict: Verdict, state: BatchState, draws: WindowRNG) -> Tensor:
    """Applies the exact acceptance test to every slot.

    This is a maximal coupling of the joint distributions: no other keeps a draft column with a higher probability.
    """
    p, draft = verdict.p, verdict.draft
    batch, width = p.shape[:2]
    # Forced cells are one-hot in both p and q, so that their ratio is 1 and they need no special treatment.
    keep = draws[ACCEPT][:, : width - 1] < acceptance_probs(ratio, p[:, :-1], draft, None)
    # The last slot has no draft, so that its column is sampled from p itself.
    rejected = torch.cat([~keep, torch.ones(batch, 1, dtype=torch.bool, device=p.device)], dim=1)
    row, slot = rejected.nonzero(as_tuple=True)
    q = F.pad(draft.q, (0, 0, 0, 0, 0, 1))[row, slot]
    resampled = thin(p[row, slot], q, draws.at(row.cpu().numpy(), slot.cpu().numpy()))
    tokens = F.pad(draft.tokens, (0, 0, 0, 1))
    tokens[row, slot] = resampled
    return put(tokens, state, draws)


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
