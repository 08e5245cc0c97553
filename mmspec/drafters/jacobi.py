"""Jacobi drafts: the window's own leftovers, and another drafter's behind them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.drafters.carry import Carry
from mmspec.noise import Draws
from mmspec.rows import Rows
from mmspec.verify import Draft, Verdict


class Extender(Protocol):
    """A drafter that goes on behind drafts it did not make: `calls`, `observe` and `keep` as in `mmspec.loop.Drafter`.

    What it drafts may depend on the drafts before, and q is the law it was drawn from given those: the test of a slot
    comes after all slots before it were accepted, so this is the exact test.
    """

    @property
    def calls(self) -> int: ...

    def extend(self, rows: Rows, draft: Draft, carried: NDArray[np.int64], draws: Draws) -> Draft:
        """Replaces whatever lies behind the first `carried` drafts of each row, host int64 [B]."""
        ...

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None: ...

    def keep(self, rows: list[int]) -> None: ...


class Jacobi:
    """Drafts what the last window left behind its first redraw, then what another drafter says.

    **Arguments:**

    - `start`: drafts for positions new to the window.
    - `carry`: what becomes of leftovers; None drops them, so that every draft is one of `start`.
    - `vocab_size`: V.
    """

    def __init__(self, start: Extender, carry: Carry | None, vocab_size: int) -> None:
        self._start = start
        self._carry = carry
        self._vocab_size = vocab_size
        self._tokens: Tensor | None = None
        self._q: Tensor | None = None
        self._offset = np.zeros(0, dtype=np.int64)

    @property
    def calls(self) -> int:
        return self._start.calls

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        self._start.observe(verdict, rows, draws)
        self._offset = verdict.accepted + 1
        if self._carry is not None and self._offset.min() < verdict.p.shape[1]:
            self._tokens, self._q = self._carry(verdict, rows, draws), verdict.p  # q := p
        else:
            self._tokens = self._q = None

    def keep(self, rows: list[int]) -> None:
        self._start.keep(rows)
        self._offset = self._offset[rows]
        if self._tokens is not None and self._q is not None:
            self._tokens, self._q = self._tokens[rows], self._q[rows]

    def propose(self, rows: Rows, count: int, draws: Draws) -> Draft:
        batch = len(rows.ids)
        if self._tokens is None or self._q is None:
            carried = np.zeros(batch, dtype=np.int64)
            cell = rows.layout.cell
            tokens = torch.empty(batch, count, *cell, dtype=torch.int64, device=rows.device)
            q = torch.zeros(batch, count, *cell, self._vocab_size, device=rows.device)
        else:
            width = self._tokens.shape[1]
            carried = np.minimum(width - self._offset, count)
            slots = torch.from_numpy(np.minimum(self._offset[:, None] + np.arange(count), width - 1)).to(rows.device)
            row = torch.arange(batch, device=rows.device)[:, None]
            tokens, q = self._tokens[row, slots], self._q[row, slots]
        draft = Draft(tokens, q)
        return self._start.extend(rows, draft, carried, draws) if carried.min() < count else draft
