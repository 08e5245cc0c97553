"""Puts rows of one batch into another: how rows join a batch that is running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class PerRow:
    """An attribute that holds something per row, in a `ROWS` of `mmspec.decoding.rows`.

    Attributes:
        name: Of the attribute.
        dim: The axis of the rows.
        fill: Where batches have tensors of different sizes: the value of what a row does not have.
        latest: Whether rows join with their last slot alone, [B, 1, ...] of [B, W, ...].
    """

    name: str
    dim: int = 0
    fill: float = 0
    latest: bool = False


RowNames = tuple[str | PerRow, ...]


def put_rows(
    own: Tensor, new: Tensor, row_ids: Sequence[int], dim: int = 0, cfg_factor: int = 1, fill: float = 0
) -> Tensor:
    """The tensor `own` with the rows of `new` at indices `row_ids`, which count the conditional rows.

    It is written in place where the new rows fit and each has memory of its own; otherwise all rows are copied to
    another tensor. An axis along which the two differ takes the larger size; what a row does not have there is `fill`.

    Args:
        own: [..., cfg_factor * B, ...], its rows along `dim`.
        new: [..., cfg_factor * len(row_ids), ...].
        row_ids: An index below B replaces a row, B and more append rows; they leave no gap.
        dim: The axis of the rows.
        cfg_factor: 2 if the unconditional rows follow the conditional ones, else 1.
        fill: The value of new entries.
    """
    own, new = own.unflatten(dim, (cfg_factor, -1)), new.unflatten(dim, (cfg_factor, -1)).to(own)
    rows = dim + 1
    shape = [max(a, b) for a, b in zip(own.shape, new.shape, strict=True)]
    shape[rows] = max(own.shape[rows], *(row + 1 for row in row_ids))
    grown = [i for i, (size, old) in enumerate(zip(shape, own.shape, strict=True)) if size != old]
    if grown:
        # Rows that are appended are written below: the rest of a cache is not written twice for them.
        larger = own.new_empty(shape) if grown == [rows] else own.new_full(shape, fill)
        larger[tuple(slice(size) for size in own.shape)] = own
        own = larger
    elif any(step == 0 and size > 1 for step, size in zip(own.stride(), own.shape, strict=True)):
        own = own.clone()  # rows of one piece of memory, as of `expand`
    index = torch.tensor(row_ids, device=own.device)
    if any(a != b for i, (a, b) in enumerate(zip(own.shape, new.shape, strict=True)) if i != rows):
        own.index_fill_(rows, index, fill)
    inside = own[tuple(slice(None if i <= rows else size) for i, size in enumerate(new.shape))]
    inside.index_copy_(rows, index, new)
    return own.flatten(dim, rows)


def put_host_rows(
    own: NDArray[Any], new: NDArray[Any], row_ids: Sequence[int], dim: int = 0, cfg_factor: int = 1, fill: float = 0
) -> NDArray[Any]:
    """`put_rows` of NumPy arrays; they are copied."""
    both = torch.from_numpy(np.array(own)), torch.from_numpy(np.array(new))
    return put_rows(*both, row_ids, dim, cfg_factor, fill).numpy()
