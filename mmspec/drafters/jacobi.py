"""Jacobi drafts: the window's own leftovers, with start tokens for positions new to it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.drafters.carry import Carry
from mmspec.drafters.recycle import Recycle
from mmspec.drafters.start import Start
from mmspec.noise import START, Draws
from mmspec.rows import Rows
from mmspec.verify import Draft, Verdict


class Jacobi:
    """Drafts what the last window left behind its first redraw, then start tokens.

    **Arguments:**

    - `start`: guesses for new positions.
    - `carry`: what becomes of leftovers; None drops them, so that every draft is a start token.
    - `vocab_size`: V.

    A `start` that is a `Recycle` learns from every window.
    """

    def __init__(self, start: Start | Recycle, carry: Carry | None, vocab_size: int) -> None:
        self.calls = 0
        self._start = start
        self._learner = start if isinstance(start, Recycle) else None
        self._carry = carry
        self._vocab_size = vocab_size
        self._tokens: Tensor | None = None
        self._q: Tensor | None = None
        self._offset = np.zeros(0, dtype=np.int64)

    def observe(self, verdict: Verdict, rows: Rows, draws: Draws) -> None:
        if self._learner is not None:
            self._learner.learn(verdict, rows)
        self._offset = verdict.accepted + 1
        if self._carry is not None and self._offset.min() < verdict.p.shape[1]:
            self._tokens, self._q = self._carry(verdict, rows, draws), verdict.p  # q := p
        else:
            self._tokens = self._q = None

    def keep(self, rows: list[int]) -> None:
        if self._learner is not None:
            self._learner.keep(rows)
        self._offset = self._offset[rows]
        if self._tokens is not None and self._q is not None:
            self._tokens, self._q = self._tokens[rows], self._q[rows]

    def propose(self, rows: Rows, count: int, draws: Draws) -> Draft:
        batch = len(rows.ids)
        if self._tokens is None or self._q is None:
            carried = np.zeros(batch, dtype=np.int64)
            tokens = torch.empty(batch, count, dtype=torch.int64, device=rows.device)
            q = torch.zeros(batch, count, self._vocab_size, device=rows.device)
        else:
            width = self._tokens.shape[1]
            carried = np.minimum(width - self._offset, count)
            slots = torch.from_numpy(np.minimum(self._offset[:, None] + np.arange(count), width - 1)).to(rows.device)
            tokens = self._tokens.gather(1, slots)
            q = self._q[torch.arange(batch, device=rows.device)[:, None], slots]
        if carried.min() < count:
            tokens, q = self._fill(rows, tokens, q, carried, draws[START])
        return Draft(tokens, q)

    def _fill(self, rows: Rows, tokens: Tensor, q: Tensor, carried: np.ndarray, u: Tensor) -> tuple[Tensor, Tensor]:
        """Puts start tokens, and their one-hot q, behind the first `carried` slots of each row."""
        count, first, width = tokens.shape[1], int(carried.min()), rows.layout.width
        together = bool((carried == first).all())  # nothing to pick out row by row, as in a batch of one
        new = torch.from_numpy(np.arange(first, count) >= carried[:, None]).to(rows.device)
        positions = rows.positions(count)
        above = rows.at(positions - width).unbind(1) if width else ()
        line_starts = positions % width == 0 if width else np.zeros_like(positions, dtype=bool)
        constraint = rows.layout.constraint
        columns = list(tokens[:, :first].unbind(1))
        left = columns[-1] if columns else rows.last()[:, 0]
        up = torch.full_like(left, -1)
        for j in range(first, count):
            if width:
                # Above may lie inside this very window, where nothing is committed yet.
                up = columns[j - width] if j >= width else above[j]
                if line_starts[:, j].any():
                    # The token before the first of a line is no neighbour; the one above stands in.
                    left = torch.where(torch.from_numpy(line_starts[:, j]).to(up.device) & (up >= 0), up, left)
            left = self._start(left, up, u[:, j])
            if constraint is not None:
                forced = constraint.forced[positions[:, j].clip(max=len(constraint.forced) - 1)]
                if (forced >= 0).any():
                    must = torch.from_numpy(forced).to(left.device)
                    left = torch.where(must >= 0, must, left)
            if not together:
                left = torch.where(new[:, j - first], left, tokens[:, j])
            columns.append(left)
        tokens = torch.stack(columns, dim=1)
        guessed = torch.zeros_like(q[:, first:]).scatter_(2, tokens[:, first:, None], 1.0)
        if not together:
            guessed = torch.where(new[..., None], guessed, q[:, first:])
        return tokens, torch.cat([q[:, :first], guessed], dim=1)
