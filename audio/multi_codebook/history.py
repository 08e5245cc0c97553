"""The columns that a target has read, for distributions that depend on earlier columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rows import PerRow

NEVER = 2**40


@dataclass(frozen=True)
class EndRule:
    """What cells are forced to by how many columns ago the first column with a marker was.

    Attributes:
        marker: A code.
        searched: The number of cells in which it is searched, from the first.
        codes: int64 [K, S]: the code of each cell s columns after the marker, -1 for none; S - 1 and more count as it.
        first: The position of the first column that is searched.
        latest: A position that counts as marked, unless one before it is; negative for none.
        opening: int64 [N, K], the code of each cell by position, -1 for none; positions past the end count as the last.
            None for none at all.
    """

    marker: int
    searched: int
    codes: Tensor
    first: int = 0
    latest: int = -1
    opening: Tensor | None = None


class ColumnHistory:
    """Columns by position. Rollback is by position: a column that is written again is overwritten, and queries before
    a position never see the columns at or after it.

    Args:
        before: int64 [B, A, K], the columns before position 0; A may be 0.
        room: Length of the sequence plus the longest window.
    """

    ROWS = (PerRow("_columns", fill=-1),)
    SAME = ("_before",)

    def __init__(self, before: Tensor, room: int) -> None:
        self._before = before.shape[1]
        self._columns = F.pad(before, (0, 0, 0, room), value=-1)

    @property
    def cells(self) -> int:
        """The number of cells of a column."""
        return self._columns.shape[2]

    def write(self, tokens: Tensor, at: Numbers) -> None:
        """Writes columns int64 [B, W, K], the first of each row at its position `at` ([B])."""
        device = self._columns.device
        slots = at.window(self._before, tokens.shape[1], device).on(device)
        self._columns.scatter_(1, slots[..., None].expand(tokens.shape), tokens)

    def forced_after(self, tokens: Tensor | None, at: Tensor, count: int, rule: EndRule) -> Tensor:
        """Writes columns, and gives the forced cells of those after them, int64 [B, W, K], -1 where a cell is free.

        It is one launch, where the Triton kernels run.

        Args:
            tokens: int64 [B, W, C], as for `write`; None for nothing.
            at: int64 [B] on the device, the position of the first of them.
            count: W, the number of positions from `at + 1` on.
            rule: What cells are forced to.
        """
        # Imported here: Triton may be missing.
        from mmspec.kernels.column_rules import cells_after

        searched = rule.marker, rule.searched, rule.first, rule.latest, rule.opening
        return cells_after(self._columns, self._before, tokens, at, count, rule.codes, *searched)

    def first(self, token: int, codebooks: int, positions: Numbers) -> Tensor:
        """The first position before each of `positions` that has `token` in one of its first `codebooks` cells.

        Args:
            token: A code.
            codebooks: Number of cells to search, from the first.
            positions: [B, W].

        Returns:
            int64 [B, W]; `NEVER` where there is no such position.
        """
        found = (self._columns[:, self._before :, :codebooks] == token).any(-1)
        position = torch.arange(found.shape[1], device=found.device).masked_fill(~found, NEVER)
        earliest = F.pad(position.cummin(1).values, (1, 0), value=NEVER)  # [:, t]: among the positions before t
        return earliest.gather(1, positions.on(found.device))

    def latest(self, count: int, positions: Numbers) -> Tensor:
        """The last `count` columns before each of `positions`, int64 [B, W, count, K]; -1 before the first column."""
        device = self._columns.device
        index = positions.on(device)[..., None] + torch.arange(self._before - count, self._before, device=device)
        rows = torch.arange(len(index), device=device)[:, None, None]
        return self._columns[rows, index.clamp(min=0)].masked_fill(index[..., None] < 0, -1)
