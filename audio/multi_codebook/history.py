"""The columns a target has been handed, for distributions that look back."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

NEVER = 2**40


class ColumnHistory:
    """Columns by position. A position that is handed anew is overwritten; what lies after it does not count.

    Args:
        before: int64 [B, A, K], what comes before position 0; A may be 0.
        room: Positions of the sequence and of the longest window together.
    """

    def __init__(self, before: Tensor, room: int) -> None:
        self._before = before.shape[1]
        self._columns = F.pad(before, (0, 0, 0, room), value=-1)

    def write(self, tokens: Tensor, at: NDArray[np.int64]) -> None:
        """Columns int64 [B, W, K], the first of each row at its position `at` (host int64 [B])."""
        rows = np.arange(len(at))[:, None]
        slots = self._before + at[:, None] + np.arange(tokens.shape[1])
        self._columns[torch.from_numpy(rows), torch.from_numpy(slots)] = tokens

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        self._columns = self._columns[row_ids]

    def first(self, token: int, codebooks: int, positions: NDArray[np.int64]) -> Tensor:
        """The first position, before each of `positions` (host int64 [B, W]), that has a token in one of the first
        `codebooks` cells: int64 [B, W]; `NEVER` where there is none.
        """
        here = (self._columns[:, self._before :, :codebooks] == token).any(-1)
        place = torch.arange(here.shape[1], device=here.device).masked_fill(~here, NEVER)
        earliest = F.pad(place.cummin(1).values, (1, 0), value=NEVER)  # [:, t]: among the positions before t
        return earliest.gather(1, torch.from_numpy(positions).to(here.device))

    def latest(self, count: int, positions: NDArray[np.int64]) -> Tensor:
        """The last `count` columns before each of `positions`, int64 [B, W, count, K]; -1 where there are less."""
        slots = self._before + positions[..., None] + np.arange(-count, 0)
        index = torch.from_numpy(slots).to(self._columns.device)
        rows = torch.arange(len(slots), device=index.device)[:, None, None]
        return self._columns[rows, index.clamp(min=0)].masked_fill(index[..., None] < 0, -1)
