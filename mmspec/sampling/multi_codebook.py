"""Columns: a token of K cells, one per codebook, drawn in one call from a distribution that is a product.

p(x) = prod_k p_k(x_k), so that a column is tested as a whole: kept with probability min(1, prod_k p_k / q_k), which is
1 - TV of the joint distributions and never less than testing cell by cell gives. A column that is not kept is resampled from
norm((p - q)+) by thinning: draw y ~ p, keep it with probability (1 - q(y) / p(y))+, else draw again. That takes
TV * 1 / TV = 1 draw per test on average and no table of V**K entries.

Forced cells are constants and count in no product. A forced id may lie outside the vocabulary, as padding does; where a
distribution is asked about it, it counts as the last entry.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from mmspec.errors import ArgumentError
from mmspec.rules.per_codebook import PerCodebook
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import Draft, Verdict, point_mass, ratio, sample, sample_many
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG
from mmspec.sampling.sampler import TokenSampler

# Draws of one column after which the residual counts as empty, which by rounding it may be. The error in total
# variation is below 1 / (e * 2**20) = 3.5e-7 whatever p and q are.
MOST_DRAWS = 2**20
_AT_ONCE = 2**12


class ColumnSampler:
    """Turns the logits of columns into probabilities, each row with its own settings.

    Args:
        rows: The settings of each row.
        forced: Forced cells, or None.

    Raises:
        ArgumentError: For forced cells of another number of rows.
    """

    def __init__(self, rows: Sequence[SamplingParams], forced: ForcedCells | None, device: torch.device) -> None:
        if forced is not None and forced.rows not in (None, len(rows)):
            raise ArgumentError(f"forced cells are for {forced.rows} rows, and there are {len(rows)}")
        self._cells = TokenSampler(rows, None, device)
        self.forced = forced

    def select_rows(self, row_ids: Tensor) -> None:
        """Drops all rows but these (int64 [rows'])."""
        self._cells.select_rows(row_ids)
        if self.forced is not None:
            self.forced = self.forced.select_rows(row_ids)

    def __call__(self, logits: Logits, positions: NDArray[np.int64]) -> Tensor:
        """Probabilities float32 [B, W, K, V] from logits of this shape; a forced cell has all its mass on one entry."""
        width, codebooks = logits.cond.shape[1:3]
        flat = Logits(logits.cond.flatten(1, 2), None if logits.uncond is None else logits.uncond.flatten(1, 2))
        p = self._cells(flat, positions.repeat(codebooks, axis=1)).unflatten(1, (width, codebooks))
        found = None if self.forced is None else self.forced.at(positions)
        if found is None:
            return p
        return point_mass(p, entries(torch.from_numpy(found).to(p.device), p.shape[-1]), 0, found >= 0)

    def sample(self, p: Tensor, draws: WindowRNG, stream: int = RESAMPLE) -> Tensor:
        """Draws columns from probabilities [B, W, K, V]: int64 [B, W, K]."""
        tokens = sample(p, draws.places(stream, 0, p.shape[2]))
        return tokens if self.forced is None else self.forced.put(tokens, draws.positions)

    def verify(self, p: Tensor, draft: Draft, rule: Accept, draws: WindowRNG) -> Verdict:
        """Tests the drafts from left to right and resamples the first that fails, or the free slot after the last.

        Args:
            p: float32 [B, m + 1, K, V], the distribution at every slot.
            draft: m columns [B, m, K] and their q [B, m, K, V]; m may be 0.
            rule: The acceptance rule of one cell; columns take the product, see `chance`.
        """
        if p.shape[1] == 1:
            return Verdict(self.sample(p, draws), np.zeros(len(p), dtype=np.int64), p, draft)
        found = None if self.forced is None else self.forced.at(draws.positions)
        free = None if found is None else torch.from_numpy(found < 0).to(p.device)
        verdict = verify_columns(p, draft, rule, draws, free)
        if self.forced is not None:
            verdict.tokens = self.forced.put(verdict.tokens, draws.positions)
        return verdict


def verify_columns(p: Tensor, draft: Draft, rule: Accept, draws: WindowRNG, free: Tensor | None) -> Verdict:
    """`ColumnSampler.verify` for m >= 1 drafts.

    Args:
        free: bool [B, m + 1, K], which cells are free, or None where all are; the others may come back as anything.
    """
    if has_torch_function((p,)):
        return handle_torch_function(verify_columns, (p,), p, draft, rule, draws, free)
    batch, m = len(p), p.shape[1] - 1
    free = None if free is None else free[:, :m]
    kept = chance(rule, p[:, :m], draft, free)
    first = (draws[ACCEPT][:, :m] < kept).long().cumprod(-1).sum(-1)
    rows = torch.arange(batch, device=p.device)
    # Where everything was accepted there is no draft to take away: the free slot is drawn from p itself.
    q = draft.q[rows, first.clamp(max=m - 1)].masked_fill_((first == m)[:, None, None], 0.0)
    accepted = first.cpu().numpy()
    resampled = thin(p[rows, first], q, draws.at(np.arange(batch), accepted))
    excess = None
    if rule is not ratio:
        excess = (kept.clamp(max=1.0) - chance(ratio, p[:, :m], draft, free).clamp(max=1.0)).float()
    return Verdict(behind(draft.tokens, first, resampled), accepted, p, draft, excess)


def behind(tokens: Tensor, first: Tensor, resampled: Tensor) -> Tensor:
    """Columns int64 [B, m + 1, K]: the drafts [B, m, K] with the resampled one [B, K] in slot `first`, int64 [B]."""
    tokens = torch.cat([tokens, resampled[:, None]], dim=1)
    return tokens.scatter_(1, first[:, None, None].expand(-1, 1, tokens.shape[2]), resampled[:, None])


def entries(tokens: Tensor, vocab_size: int) -> Tensor:
    """Where in a distribution a token stands: itself, or the last entry for a forced id outside the vocabulary."""
    return tokens.clamp(0, vocab_size - 1)


def chance(rule: Accept, p: Tensor, draft: Draft, free: Tensor | None) -> Tensor:
    """The probability float64 [B, m] with which each column is kept: the product of the rule's ratios of free cells.

    A relaxed rule counts for a cell where it is above the exact ratio, so that a column is never kept less often than
    the exact rule keeps it: what `excess` reports is then a bound.

    Args:
        p: float32 [B, m, K, V].
        draft: Of m columns.
        free: bool [B, m, K], or None where all cells are.
    """
    x = entries(draft.tokens, p.shape[-1])
    ratios = ratio(p, draft.q, x)
    if rule is not ratio:
        cells = rule if isinstance(rule, PerCodebook) else PerCodebook([rule] * x.shape[2])
        ratios = torch.maximum(ratios, cells(p, draft.q, x))
    if free is not None:
        ratios = ratios.masked_fill(~free, 1.0)
    return ratios.double().prod(-1)  # 32 ratios leave the range of float32


def thin(p: Tensor, q: Tensor, draws: WindowRNG) -> Tensor:
    """Draws columns from norm((p - q)+) of product distributions: int64 [R, K].

    Args:
        p: float32 [R, K, V].
        q: Of the same shape, zeros where nothing is to be taken away.
        draws: Of R positions, [R, 1]. Draw i takes K numbers of RESAMPLE, from i * K on, and number i + 1 of ACCEPT;
            with number 0 the draft was tested.
    """
    codebooks, device = p.shape[1], p.device
    tokens = torch.empty(p.shape[:2], dtype=torch.int64, device=device)
    left, done, tries = torch.arange(len(p), device=device), 0, 4
    while True:
        here = draws.at(left.cpu().numpy(), np.zeros(len(left), dtype=np.int64))
        u = here.places(RESAMPLE, done * codebooks, tries * codebooks)[:, 0].unflatten(1, (tries, codebooks))
        weights, taken = p[left], q[left]
        y = sample_many(weights, u.transpose(1, 2).contiguous())  # [R', K, tries]
        covered = (taken.gather(-1, y) / weights.gather(-1, y)).double().prod(1)
        keep = here.places(ACCEPT, 1 + done, tries)[:, 0] < 1 - covered
        done += tries
        found, which = keep.any(1) | (done >= MOST_DRAWS), keep.int().argmax(1)
        tokens[left[found]] = y[found, :, which[found]]
        left = left[~found]
        if not len(left):
            return tokens
        tries = min(4 * tries, _AT_ONCE)
