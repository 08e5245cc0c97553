"""Guesses of columns, codebook by codebook, from the columns before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.multi_codebook import entries
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import INIT, WindowRNG

# (left, u) -> columns, int64 [B, K]. `left` is the column before, whose forced ids stand as entries of the vocabulary;
# `u` float32 [B, K] uniform in [0, 1). The guess counts as certain (one-hot q), so any guess is exact.
ColumnInit = Callable[[Tensor, Tensor], Tensor]


def repeat_left(left: Tensor, u: Tensor) -> Tensor:
    """The column before."""
    return left


def random_column(vocab_size: int) -> ColumnInit:
    """Any column, all alike."""
    return lambda left, u: (u * vocab_size).long().clamp_(max=vocab_size - 1)


class ColumnRecycle:
    """Token recycling codebook by codebook: the likeliest token after each token, as the target's distributions last had it.

    Each row keeps a table of its own, so that it does not depend on its batch.

    Args:
        batch_size: B.
        codebooks: K.
        vocab_size: V.
    """

    def __init__(self, batch_size: int, codebooks: int, vocab_size: int, device: torch.device) -> None:
        # A token that was never seen is followed by itself.
        itself = torch.arange(vocab_size, dtype=torch.int32, device=device)
        self._next = itself.expand(batch_size, codebooks, -1).clone()

    def __call__(self, left: Tensor, u: Tensor) -> Tensor:
        return self._next.gather(2, left[..., None])[..., 0].long()

    def learn(self, verdict: Verdict, state: BatchState) -> None:
        """Remembers the likeliest token of each slot; `state` still stand where the window began."""
        if state.length.min() == 0:
            return  # the first column has none before it
        p = verdict.p
        left = state.last() if p.shape[1] == 1 else torch.cat([state.last(), verdict.draft.tokens], dim=1)
        # One slot after the other, so that of two the later one counts.
        for before, dist in zip(entries(left, p.shape[-1]).unbind(1), p.unbind(1), strict=True):
            self._next.scatter_(2, before[..., None], dist.argmax(-1, keepdim=True).int())

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        self._next = self._next[row_ids]


class ColumnInitDrafter:
    """Puts guesses after drafts; a `start` that is a `ColumnRecycle` learns from every window."""

    calls = 0

    def __init__(self, start: ColumnInit | ColumnRecycle) -> None:
        self._start = start
        self._learner = start if isinstance(start, ColumnRecycle) else None

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        if self._learner is not None:
            self._learner.learn(verdict, state)

    def select_rows(self, row_ids: list[int]) -> None:
        if self._learner is not None:
            self._learner.select_rows(row_ids)

    def extend(self, state: BatchState, draft: Draft, reused: NDArray[np.int64], draws: WindowRNG) -> Draft:
        """As `mmspec.drafters.jacobi.ContinuationDrafter` has it."""
        codebooks, vocab_size = draft.q.shape[-2:]
        u, forced = draws.uniforms(INIT, 0, codebooks), state.layout.forced
        new = torch.from_numpy(np.arange(draft.tokens.shape[1]) >= reused[:, None]).to(state.device)
        columns, left = [], state.last()[:, 0]
        for j in range(draft.tokens.shape[1]):
            guess = self._start(entries(left, vocab_size), u[:, j])
            if forced is not None:
                guess = forced.put(guess[:, None], draws.positions[:, j : j + 1])[:, 0]
            left = torch.where(new[:, j, None], guess, draft.tokens[:, j])
            columns.append(left)
        tokens = torch.stack(columns, dim=1)
        certain = torch.zeros_like(draft.q).scatter_(-1, entries(tokens, vocab_size)[..., None], 1.0)
        return Draft(tokens, torch.where(new[..., None, None], certain, draft.q))
