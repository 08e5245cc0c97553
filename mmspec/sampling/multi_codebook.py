"""Rejection sampling of columns: tokens of K cells, one per codebook, sampled in one call from a product distribution.

p(x) = prod_k p_k(x_k), so a column is tested as a whole: it is accepted with probability min(1, prod_k p_k / q_k), on
average 1 - TV of the joint distributions, which is never less than with cells tested one by one. A rejected column is
resampled from norm((p - q)+) by thinning: sample y ~ p, accept it with probability (1 - q(y) / p(y))+, else sample
again. This takes TV * 1 / TV = 1 sample per test on average and no table of V**K entries.

Forced cells are constants and have no factor in any product. A forced id may lie outside the vocabulary, as padding
does; as an index into a distribution it counts as the last entry.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.sampling.acceptance import Accept, PerCodebook
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import dense, widest
from mmspec.sampling.rejection import Draft, Verdict, ratio, sample, sample_many
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG

# Samples of one column after which the residual counts as empty, which by rounding it may be. The error in total
# variation is below 1 / (e * 2**20) = 3.5e-7 for any p and q.
MAX_SAMPLES = 2**20
_CHUNK = 2**12  # samples of one column at a time


def verify_columns(p: Tensor, draft: Draft, rule: Accept, rng: WindowRNG, cells: ForcedCells | None) -> Verdict:
    """`mmspec.sampling.sampler.ColumnSampler.verify` for m >= 1 drafts.

    Args:
        p: float32 [B, m + 1, K, V], the target distribution at every slot.
        draft: m columns [B, m, K] and their q [B, m, K, V].
        rule: The acceptance rule of one cell; columns take the product, see `acceptance_probs`.
        rng: The random numbers of the window.
        cells: The forced cells, by position; None if all cells are free.
    """
    batch, m, drafted = len(p), p.shape[1] - 1, dense(draft.q)
    forced = None if cells is None else cells.on(p.device, rng.positions)
    free = None if forced is None else forced[:, :m] < 0
    accept = acceptance_probs(rule, p[:, :m], drafted, draft.tokens, free)
    first = (rng[ACCEPT][:, :m] < accept).long().cumprod(-1).sum(-1)
    rows = torch.arange(batch, device=p.device)
    # Where all drafts were accepted nothing is subtracted: the bonus column is sampled from p itself.
    q = drafted[rows, first.clamp(max=m - 1)].masked_fill_((first == m)[:, None, None], 0.0)
    accepted = first.cpu().numpy()
    resampled = thin(p[rows, first], q, rng.at(np.arange(batch), accepted))
    excess = None
    if rule is not ratio:
        exact = acceptance_probs(ratio, p[:, :m], drafted, draft.tokens, free)
        excess = (accept.clamp(max=1.0) - exact.clamp(max=1.0)).float()
    return Verdict(with_resampled(draft.tokens, first, resampled, forced), Numbers(accepted), p, draft, excess)


def with_resampled(tokens: Tensor, first: Tensor, resampled: Tensor, forced: Tensor | None) -> Tensor:
    """Columns int64 [B, m + 1, K]: the drafts [B, m, K] with the resampled one [B, K] in slot `first`, int64 [B].

    `forced` int64 [B, m + 1, K] are the tokens of forced cells, -1 where a cell is free; None if all are.
    """
    tokens = torch.cat([tokens, resampled[:, None]], dim=1)
    tokens.scatter_(1, first[:, None, None].expand(-1, 1, tokens.shape[2]), resampled[:, None])
    return tokens if forced is None else torch.where(forced >= 0, forced, tokens)


def sample_columns(p: Tensor, rng: WindowRNG) -> Tensor:
    """Samples the columns int64 [B, W, K] of all slots of a window from p, float32 [B, W, K, V]."""
    return sample(p, rng.uniforms(RESAMPLE, 0, p.shape[2]))


def couple_columns(p: Tensor, draft: Draft, rng: WindowRNG, accepted: NDArray[np.int64] | None = None) -> Tensor:
    """Applies the exact acceptance test to every slot of a window, whose columns are int64 [B, m + 1, K] then.

    This is a maximal coupling of the joint distributions: no other keeps a draft column with a higher probability.

    Args:
        p: float32 [B, m + 1, K, V], the target distribution at every slot.
        draft: m columns. Forced cells are one-hot in p and q, so that their ratio is 1.
        rng: The random numbers of the window.
        accepted: Host int64 [B], the accepted drafts. The columns up to the one after them are not used, and may be
            any. None for 0.
    """
    batch, width, q = *p.shape[:2], dense(draft.q)
    keep = rng[ACCEPT][:, : width - 1] < acceptance_probs(ratio, p[:, :-1], q, draft.tokens, None)
    # The last slot has no draft, so that its column is sampled from p itself.
    rejected = torch.cat([~keep, torch.ones(batch, 1, dtype=torch.bool, device=p.device)], dim=1)
    row, slot = rejected.nonzero(as_tuple=True)
    q = F.pad(q, (0, 0, 0, 0, 0, 1))[row, slot]
    tokens = F.pad(draft.tokens, (0, 0, 0, 1))
    tokens[row, slot] = thin(p[row, slot], q, rng.at(row.cpu().numpy(), slot.cpu().numpy()))
    return tokens


def entries(tokens: Tensor, vocab_size: int) -> Tensor:
    """The index of each token in a distribution: itself, or the last entry for a forced id outside the vocabulary."""
    return tokens.clamp(0, vocab_size - 1)


def acceptance_probs(rule: Accept, p: Tensor, q: Tensor, tokens: Tensor, free: Tensor | None) -> Tensor:
    """The acceptance probability float64 [B, m] of each column: the product of the rule's ratios of its free cells.

    A relaxed rule applies to a cell only if it exceeds the exact ratio. A column is then never accepted less often than
    under the exact rule, so that the bound computed from `Verdict.excess` holds.

    Args:
        rule: The acceptance rule of one cell.
        p: float32 [B, m, K, V].
        q: float32 [B, m, K, V], of the drafts.
        tokens: int64 [B, m, K], the drafts.
        free: bool [B, m, K], or None if all cells are free.
    """
    x = entries(tokens, p.shape[-1])
    ratios = ratio(p, q, x)
    if rule is not ratio:
        cells = rule if isinstance(rule, PerCodebook) else PerCodebook([rule] * x.shape[2])
        ratios = torch.maximum(ratios, cells(p, q, x))
    if free is not None:
        ratios = ratios.masked_fill(~free, 1.0)
    return ratios.to(widest(ratios.device)).prod(-1)  # 32 ratios leave the range of float32


def thin(p: Tensor, q: Tensor, rng: WindowRNG) -> Tensor:
    """Samples columns int64 [R, K] from norm((p - q)+) of product distributions.

    Args:
        p: float32 [R, K, V].
        q: float32 [R, K, V], zeros where nothing is subtracted.
        rng: The random numbers of R positions, [R, 1]. Sample i takes K numbers of RESAMPLE, from number i * K on, and
            number i + 1 of ACCEPT; number 0 has tested the draft.
    """
    codebooks, device = p.shape[1], p.device
    tokens = torch.empty(p.shape[:2], dtype=torch.int64, device=device)
    left, done, tries = torch.arange(len(p), device=device), 0, 4
    while True:
        numbers = rng.at(left.cpu().numpy(), np.zeros(len(left), dtype=np.int64))
        u = numbers.uniforms(RESAMPLE, done * codebooks, tries * codebooks)[:, 0].unflatten(1, (tries, codebooks))
        p_left, q_left = p[left], q[left]
        y = sample_many(p_left, u.transpose(1, 2).contiguous())  # [R', K, tries]
        covered = (q_left.gather(-1, y) / p_left.gather(-1, y)).to(widest(device)).prod(1)
        accept = numbers.uniforms(ACCEPT, 1 + done, tries)[:, 0] < 1 - covered
        done += tries
        finished, which = accept.any(1) | (done >= MAX_SAMPLES), accept.int().argmax(1)
        tokens[left[finished]] = y[finished, :, which[finished]]
        left = left[~finished]
        if not len(left):
            return tokens
        tries = min(4 * tries, _CHUNK)
