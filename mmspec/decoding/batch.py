"""The state of a batch: the tokens and lengths of its rows, and which rows are still running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.sampling.rng import CounterRNG


@dataclass(frozen=True)
class Step:
    """Progress after a target call, the argument of `on_step` callbacks.

    Attributes:
        nfe: Target calls so far.
        committed: Tokens of all rows so far.
        total: Tokens of all rows if none ends early.
        tokens: A copy of the tokens of each row so far, int64 [n_row] each.
    """

    nfe: int
    committed: int
    total: int
    tokens: list[Tensor]


class BatchState:
    """The state of a batch whose rows advance independently.

    B is the number of running rows; rows that have finished are dropped by `select_rows`.

    Args:
        seeds: One per row.
        layout: The sequence to generate.
        window: The widest window, in tokens.
        device: Of the tokens.

    Attributes:
        ids: Host int64 [B], the indices of the running rows in the request.
        layout: The sequence to generate, with the constraints of the running rows.
        length: Host int64 [B], the number of tokens of each running row.
        rng: The random numbers of the running rows.
    """

    def __init__(self, seeds: Sequence[int], layout: Layout, window: int, device: torch.device) -> None:
        count = len(seeds)
        self.layout = layout
        self.device = device
        self.rng = CounterRNG(seeds, device)
        self.ids = np.arange(count)
        self._lengths = np.zeros(count, dtype=np.int64)
        self._ended = np.zeros(count, dtype=bool)
        # A window may reach past the end; tokens written there are never read.
        shape = (count, layout.length + window, *layout.cell)
        self._tokens = torch.full(shape, layout.pad, dtype=layout.dtype, device=device)
        self._index = torch.arange(count, device=device)[:, None]

    @property
    def length(self) -> NDArray[np.int64]:
        return self._lengths[self.ids]

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Which rows of the request reached the full length although no token ended them, host bool [rows].

        A sequence that nothing ends has a fixed length and is not truncated.
        """
        may_end = bool(self.layout.eos) or self.layout.ends is not None or self.layout.stops is not None
        return (self._lengths >= self.layout.length) & ~self._ended & may_end

    def positions(self, width: int) -> NDArray[np.int64]:
        """The next `width` positions of each row, host int64 [B, width]."""
        return self.length[:, None] + np.arange(width)

    def at(self, positions: NDArray[np.int64]) -> Tensor:
        """The tokens at the given positions, [B, W, *cell]; -1 at negative positions."""
        index = torch.from_numpy(positions).to(self.device)
        found = self._tokens[self._index, index.clamp(min=0)]
        return found if (positions >= 0).all() else found.masked_fill(self._wide(index < 0), -1)

    def last(self, count: int = 1) -> Tensor:
        """The last `count` tokens of each row, [B, count, *cell]."""
        return self.at(self.length[:, None] + np.arange(-count, 0))

    def commit(self, tokens: Tensor, accepted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Appends the accepted tokens and the resampled or bonus token after them.

        A row stops at its full length or after its first end-of-sequence token; later tokens of the window are dropped.

        Args:
            tokens: [B, W, *cell], the window.
            accepted: Host int64 [B], the number of accepted drafts of each row.

        Returns:
            The number of tokens that each row gained, host int64 [B].
        """
        width, start = tokens.shape[1], self.length
        self._tokens[self._index, torch.from_numpy(self.positions(width)).to(self.device)] = tokens
        gained = np.minimum(accepted + 1, self.layout.length - start)
        if (ends := self._ends(tokens, start, gained)) is not None:
            ended = ends & (np.arange(width) < gained[:, None])
            stops = ended.any(1)
            gained = np.where(stops, ended.argmax(1) + 1, gained)
            self._ended[self.ids] |= stops
            self._done = stops | (start + gained >= self.layout.length)
        else:
            self._done = start + gained >= self.layout.length
        self._lengths[self.ids] += gained
        return gained

    def append(self, tokens: Tensor) -> list[int]:
        """Appends one token per row, [B, 1, *cell]; returns the indices of the rows that are still running."""
        length = self.length
        n = int(length[0])
        if len(length) == len(self._tokens) and (length == n).all():
            self._tokens[:, n : n + 1] = tokens
        else:
            self._tokens[self._index[:, 0], torch.from_numpy(length).to(self.device)] = tokens[:, 0]
        self._lengths[self.ids] = length + 1
        self._done = length + 1 >= self.layout.length
        if (ends := self._ends(tokens, length, np.ones_like(length))) is not None:
            self._done |= ends[:, 0]
            self._ended[self.ids] |= ends[:, 0]
        return self.running()

    def _ends(self, tokens: Tensor, start: NDArray[np.int64], gained: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Which tokens end their row, host bool [B, W]; None if no token does.

        Args:
            tokens: [B, W, *cell], already written.
            start: The number of tokens of each row before them, host int64 [B].
            gained: The number of them that a row keeps if none ends it, host int64 [B].
        """
        layout, ends = self.layout, None
        if layout.ends is not None:
            ends = layout.ends(tokens).cpu().numpy()
        elif layout.eos:
            ends = np.isin(tokens.cpu().numpy(), list(layout.eos))
        if layout.stops is None:
            return ends
        ends = np.zeros(tokens.shape[:2], dtype=bool) if ends is None else ends.copy()
        for row, first, count, ended in zip(self.ids, start, gained, ends, strict=True):
            for n in range(int(count)):
                ended[n] = ended[n] or layout.stops(int(row), self._tokens[row, : first + n + 1])
                if ended[n]:
                    break
        return ends

    def _wide(self, which: Tensor) -> Tensor:
        """A token mask bool [B, W] with trailing axes of size 1, to broadcast over the cell."""
        return which.reshape(*which.shape, *(1,) * len(self.layout.cell))

    def running(self) -> list[int]:
        """The indices of the rows, among the B current ones, that are not finished."""
        return np.flatnonzero(~self._done).tolist()

    def select_rows(self, row_ids: list[int]) -> None:
        """Keeps these rows running, in this order, and drops all others; their tokens stay in `result`."""
        self.ids = self.ids[row_ids]
        self._index = self._index[row_ids]
        self.rng.select_rows(row_ids)
        if self.layout.constraint is not None:
            self.layout = replace(self.layout, constraint=self.layout.constraint.select_rows(row_ids))
        if self.layout.forced is not None:
            self.layout = replace(self.layout, forced=self.layout.forced.select_rows(row_ids))

    def step(self, nfe: int) -> Step:
        """The progress after `nfe` target calls, for callbacks."""
        so_far = [t[:n].clone() for t, n in zip(self._tokens, self._lengths, strict=True)]
        return Step(nfe, int(self._lengths.sum()), len(so_far) * self.layout.length, so_far)

    def result(self) -> Tensor:
        """The tokens of all rows of the request, finished ones included, [rows, N, *cell]; `pad` after a row's end."""
        tokens = self._tokens[:, : self.layout.length]
        lengths = torch.from_numpy(self._lengths).to(self.device)
        past_end = torch.arange(self.layout.length, device=self.device) >= lengths[:, None]
        return tokens.masked_fill(self._wide(past_end), self.layout.pad)
