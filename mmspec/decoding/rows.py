"""The owner of rows: drops and joins the rows of whatever a batch is made of.

A part of a batch names in `ROWS` which of its attributes hold something per row. Each of them is

- None, or a tensor without elements: nothing yet;
- a tensor, probabilities or a host array with the rows along its first axis, [B, ...], or [2 * B, ...] with
  guidance, where the unconditional rows follow the conditional ones;
- a list with one item per row;
- another part, a target, a sampler or a KV cache.

Nothing else moves rows. A part that must act on a move has some of the functions of `HoldsRows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.kv_cache import KVCache
from mmspec.sampling.logits import cfg_rows
from mmspec.sampling.probs import NotWritten
from mmspec.sampling.rows import put_host_rows, put_rows
from mmspec.sampling.sampler import JoinableSampler

if TYPE_CHECKING:
    from mmspec.decoding.batch import BatchState


class HoldsRows(Protocol):
    """A part of a batch with values per row. All its functions are optional, `ROWS` as well if there are none.

    Attributes:
        ROWS: The names of the attributes that hold something per row.
        COUNTS: The names of the attributes that count something, and are added up when batches join.
    """

    ROWS: ClassVar[tuple[str, ...]]
    COUNTS: ClassVar[tuple[str, ...]]

    def before_move(self) -> None:
        """Called before rows are dropped or joined."""
        ...

    def before_join(self, other: Any, state: BatchState, other_state: BatchState) -> None:
        """Makes what is still missing in `self` or `other`, a part of the same class, so that all shapes fit.

        Args:
            other: The part whose rows join.
            state: The batch of `self`, before the rows have joined it.
            other_state: The batch of `other`.
        """
        ...

    def after_join(self, other: Any) -> None:
        """Takes over from `other` what does not belong to one row."""
        ...

    def after_move(self) -> None:
        """Called after rows were dropped or joined."""
        ...


class Kept:
    """The rows of a batch that stay.

    Args:
        row_ids: Their indices, in order.
        rows: B, the number of rows so far.
        device: Of the batch.
    """

    def __init__(self, row_ids: Sequence[int], rows: int, device: torch.device) -> None:
        self.row_ids, self._rows, self._device = list(row_ids), rows, device
        self._index = cache(partial(cfg_rows, self.row_ids, rows))  # one upload per device

    def of(self, value: Any) -> Any:
        """The value of an attribute with these rows alone."""
        if isinstance(value, Tensor | NotWritten):
            return value[self._index(len(value) > self._rows, value.device)] if len(value) else value
        if isinstance(value, np.ndarray):
            return value[self._index(len(value) > self._rows, torch.device("cpu")).numpy()] if len(value) else value
        if isinstance(value, list):
            return [value[row] for row in self.row_ids]
        if isinstance(value, KVCache):
            if value.rows:
                value.select_rows(self._index(value.rows > self._rows, value.device))
        elif isinstance(value, JoinableSampler):
            value.select_rows(self._index(False, self._device))
        elif hasattr(value, "select_rows"):  # a target
            value.select_rows(self.row_ids)
        elif value is not None:
            select_rows(value, self)
        return value


def select_rows(part: Any, kept: Kept) -> None:
    """Keeps these rows of a part, in this order, and drops all others."""
    _call(part, "before_move")
    for name, value in _values(part):
        setattr(part, name, kept.of(value))
    _call(part, "after_move")


def join_rows(part: Any, other: Any, row_ids: Sequence[int], state: BatchState, other_state: BatchState) -> None:
    """Takes in the rows of another part of the same class, which must not be used any more.

    Args:
        part: The part.
        other: The part whose rows join.
        row_ids: Row i of it becomes row `row_ids[i]`, in the place of a finished row, or is appended.
        state: The batch, before the rows have joined it. Every row has a token, and no window is open.
        other_state: The batch of `other`.
    """
    for each in (part, other):
        _call(each, "before_move")
    _call(part, "before_join", other, state, other_state)
    rows = len(state.ids)
    for name, value in _values(part):
        new: Any = getattr(other, name, None)
        value, new = (one.dense() if isinstance(one, NotWritten) else one for one in (value, new))
        assert (value is None) == (new is None), f"{type(part).__name__}.{name}: `before_join` makes it in both"
        if isinstance(value, Tensor):
            if len(value):
                setattr(part, name, put_rows(value, new, row_ids, cfg_factor=len(value) // rows))
        elif isinstance(value, np.ndarray):
            if len(value):
                setattr(part, name, put_host_rows(value, new, row_ids, cfg_factor=len(value) // rows))
        elif isinstance(value, list):
            by_row = dict(enumerate(value)) | dict(zip(row_ids, new, strict=True))
            setattr(part, name, [by_row[row] for row in range(len(by_row))])
        elif isinstance(value, KVCache):
            value.join(new, row_ids, value.rows // rows)
        elif hasattr(value, "join"):  # a target or a sampler
            value.join(new, row_ids)
        elif value is not None:
            join_rows(value, new, row_ids, state, other_state)
    for name in getattr(part, "COUNTS", ()):
        setattr(part, name, getattr(part, name) + getattr(other, name))
    _call(part, "after_join", other)
    _call(part, "after_move")


def can_join(part: Any, other: Any) -> bool:
    """Whether the rows of `other` can join a part: they are of one class, and all that they consist of can."""
    if type(part) is not type(other):
        return False
    for name, value in _values(part):
        new: Any = getattr(other, name, None)
        if value is None or isinstance(value, NotWritten | Tensor | np.ndarray | list | KVCache | JoinableSampler):
            continue
        if hasattr(value, "can_join"):
            fits = value.can_join(new)
        else:  # a target without `join` keeps its rows for itself
            fits = hasattr(value, "join") or (not hasattr(value, "select_rows") and can_join(value, new))
        if not fits:
            return False
    return True


def _values(part: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a part that hold something per row, as far as it has them already."""
    for name in getattr(part, "ROWS", ()):
        yield name, getattr(part, name, None)


def _call(part: Any, name: str, *arguments: Any) -> None:
    function = getattr(part, name, None)
    if function is not None:
        function(*arguments)
