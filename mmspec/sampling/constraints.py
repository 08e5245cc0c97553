"""Tokens that a position allows, or is forced to."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.sampling.numbers import Numbers, on_device
from mmspec.sampling.rows import put_host_rows, put_rows

_PAST_END = 1024  # positions


class ForcedTokens:
    """The tokens that positions are forced to, the same in all rows or separate for each row; -1 where a token is free.

    Args:
        tokens: Host int64 [N], or [B, N].
    """

    def __init__(self, tokens: NDArray[np.int64]) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return self.tokens.shape[-1]

    def __getitem__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The forced tokens at one position per row, host int64 [B]."""
        return self.tokens[positions] if self.tokens.ndim == 1 else self.tokens[np.arange(len(positions)), positions]


class Constraint:
    """The tokens that each position allows, the same in all rows or separate for each row.

    Args:
        kind: int64 [N], the kind of each position; or [B, N], of each position of each row.
        allowed: bool [kinds, V], the tokens that each kind allows; a kind that allows one token forces it.

    Raises:
        ArgumentError: If a kind allows no token.
    """

    def __init__(self, kind: Tensor, allowed: Tensor) -> None:
        if not bool(allowed.any(dim=-1).all()):
            raise ArgumentError("allowed has a row without a single token; every kind of position needs at least one")
        self.kind = kind
        self.allowed = allowed
        self._latest: tuple[Numbers, Tensor] | None = None  # see `device_kinds`
        self._only = torch.where(allowed.sum(-1) == 1, allowed.int().argmax(-1), -1).cpu().numpy()

    @cached_property
    def forced(self) -> ForcedTokens:
        """The token of each position that allows only one."""
        return ForcedTokens(self._only[self.kind.cpu().numpy()])

    @cached_property
    def _past_end(self) -> Tensor:
        """int32, the kinds with that of the last position repeated, so that windows that reach past it find theirs."""
        last = self.kind[..., -1:]
        return torch.cat([self.kind, last.expand(*last.shape[:-1], _PAST_END)], dim=-1).int()

    @property
    def batch_size(self) -> int | None:
        """B if rows are constrained separately, else None."""
        return len(self.kind) if self.kind.ndim == 2 else None

    def of_rows(self, row_ids: list[int]) -> Constraint:
        """The constraint of these rows."""
        if self.batch_size is None:
            return self
        selected = copy(self)
        selected.kind, selected._latest = self.kind[row_ids], None
        for cached in ("forced", "_past_end"):
            selected.__dict__.pop(cached, None)
        return selected

    def with_rows(self, other: Constraint, batch_size: int, row_ids: Sequence[int]) -> Constraint:
        """The constraint of a batch that rows join.

        Args:
            other: Of the new rows; row i of it becomes row `row_ids[i]`, or is appended.
            batch_size: Rows of this batch.
        """
        same = torch.equal(self.allowed, other.allowed)
        if same and self.batch_size is None and other.batch_size is None and torch.equal(self.kind, other.kind):
            return self
        length = max(self.kind.shape[-1], other.kind.shape[-1])
        own = _by_row(self.kind, batch_size, length)
        new = _by_row(other.kind, len(row_ids), length) + (0 if same else len(self.allowed))
        kinds = put_rows(own.clone(), new, row_ids)
        allowed = self.allowed if same else torch.cat([self.allowed, other.allowed])
        # Kinds of rows that have left are dropped, so that the table does not grow with every row that joins.
        used, kinds = kinds.unique(return_inverse=True)
        allowed, renamed = allowed[used].unique(dim=0, return_inverse=True)
        return Constraint(renamed[kinds], allowed)

    def mask(self, positions: NDArray[np.int64]) -> Tensor:
        """Bool [B, W, V]: True where a token is forbidden. Positions (int64 [B, W]) past the end count as the last."""
        return ~self.allowed[self.kinds(positions)]

    def kinds(self, positions: NDArray[np.int64]) -> Tensor:
        """The kind of each position, int64 [B, W]."""
        inside = on_device(positions.clip(max=self.kind.shape[-1] - 1), self.kind.device)
        return self.kind[inside] if self.batch_size is None else self.kind.gather(1, inside)

    def device_kinds(self, positions: Numbers) -> Tensor:
        """`kinds` as int32, in one launch for positions that are on the device, and one for all parts of these."""
        if positions.there is None:
            return self._device_kinds(positions)
        whole, index = positions.part_of or (positions, ...)
        latest = self._latest  # read once: a drafter may use the same constraint in another thread
        if latest is None or latest[0] is not whole:
            latest = self._latest = whole, self._device_kinds(whole)
        return latest[1][index]

    def _device_kinds(self, positions: Numbers) -> Tensor:
        inside = positions.on(self.kind.device)
        if positions.host.max() >= self._past_end.shape[-1]:
            inside = inside.clamp(max=self._past_end.shape[-1] - 1)
        return self._past_end[inside] if self.batch_size is None else self._past_end.gather(1, inside)


class ForcedCells:
    """The cells that positions are forced to, the same in all rows or separate for each row; -1 where a cell is free.

    Args:
        tokens: Host int64 [N, K], or [B, N, K].
    """

    def __init__(self, tokens: NDArray[np.int64]) -> None:
        self.tokens = tokens
        self._there: Tensor | None = None  # the tokens on a device
        self._latest: tuple[Numbers, Tensor] | None = None  # see `on`

    @property
    def batch_size(self) -> int | None:
        """B if rows have separate forced cells, else None."""
        return len(self.tokens) if self.tokens.ndim == 3 else None

    def of_rows(self, row_ids: list[int]) -> ForcedCells:
        """The forced cells of these rows."""
        if self.batch_size is None:
            return self
        return ForcedCells(self.tokens[row_ids])

    def with_rows(self, other: ForcedCells, batch_size: int, row_ids: Sequence[int]) -> ForcedCells:
        """The forced cells of a batch that rows join; see `Constraint.with_rows`."""
        if np.array_equal(self.tokens, other.tokens) and self.batch_size is None:
            return self
        length = max(self.tokens.shape[-2], other.tokens.shape[-2])
        own, new = (
            np.concatenate([cells, np.repeat(cells[:, -1:], length - cells.shape[1], axis=1)], axis=1)
            for cells in (
                np.broadcast_to(each.tokens, (rows, *each.tokens.shape[-2:]))
                for each, rows in ((self, batch_size), (other, len(row_ids)))
            )
        )
        return ForcedCells(put_host_rows(own, new, row_ids))

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The forced cells at positions int64 [B, W], host int64 [B, W, K]; None if all of them are free.

        Positions past the end count as the last.
        """
        inside = positions.clip(max=self.tokens.shape[-2] - 1)
        cells = self.tokens[inside] if self.batch_size is None else self.tokens[np.arange(len(inside))[:, None], inside]
        return cells if (cells >= 0).any() else None

    def on(self, device: torch.device, positions: Numbers) -> Tensor | None:
        """As `at`, on a device: from a copy there, once for the positions of a window and their parts."""
        if (cells := self.at(positions.host)) is None:
            return None
        if device.type == "cpu":
            return torch.from_numpy(cells)
        whole, index = positions.part_of or (positions, ...)
        latest = self._latest  # read once: a drafter may use the same cells in another thread
        if latest is None or latest[0] is not whole:
            latest = self._latest = whole, self._on(device, whole)
        return latest[1][index]

    def table(self, device: torch.device) -> Tensor:
        """The tokens on a device, which are copied there once; what kernels read."""
        if self._there is None or self._there.device != device:
            self._there = on_device(np.ascontiguousarray(self.tokens), device)
        return self._there

    def _on(self, device: torch.device, positions: Numbers) -> Tensor:
        table, inside = self.table(device), positions.on(device).clamp(max=self.tokens.shape[-2] - 1)
        if self.batch_size is None:
            return table[inside]
        return table.gather(1, inside[..., None].expand(-1, -1, self.tokens.shape[-1]))

    def put(self, tokens: Tensor, positions: Numbers) -> Tensor:
        """Columns int64 [B, W, K] with the forced cells of their positions in place."""
        forced = self.on(tokens.device, positions)
        return tokens if forced is None else torch.where(forced >= 0, forced, tokens)


def _by_row(kind: Tensor, rows: int, length: int) -> Tensor:
    """Kinds [N] or [rows, N] as [rows, length]; positions past the end count as the last."""
    kind = kind.expand(rows, -1)
    return torch.cat([kind, kind[:, -1:].expand(-1, length - kind.shape[1])], dim=1)
