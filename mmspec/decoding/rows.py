"""The owner of rows: drops and joins the rows of whatever a batch is made of.

A part of a batch is a target, a drafter, a sampler, a KV cache, or anything that one of them consists of. It names in
`ROWS` which of its attributes hold something per row. Each of them is

- None, or a tensor without rows: nothing yet;
- a tensor, probabilities, a host array or a quantized store with the rows along one axis, [B, ...], or [2 * B, ...]
  with guidance, where the unconditional rows follow the conditional ones; `PerRow` says what is special about it;
- `mmspec.sampling.numbers.Numbers`, whose copy on a device is given up;
- a list with one item per row;
- a tuple, a dict or a layout, whose values are any of these;
- another part.

Nothing else moves rows. A part that must act on a move has some of the functions of `HoldsRows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.kv_cache import put_store
from mmspec.decoding.layout import Layout
from mmspec.decoding.quantized_cache import QuantizedStore
from mmspec.errors import PluginError
from mmspec.sampling.constraints import Constraint, ForcedCells
from mmspec.sampling.logits import cfg_rows
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.probs import NotWritten
from mmspec.sampling.rows import PerRow, RowNames, put_host_rows

if TYPE_CHECKING:
    from mmspec.decoding.batch import BatchState
    from mmspec.decoding.stats import Meter


class HoldsRows(Protocol):
    """A part of a batch with values per row. All its functions are optional, `ROWS` as well if there are none.

    Attributes:
        ROWS: The names of the attributes that hold something per row.
        COUNTS: The names of the attributes that count something, and are added up when batches join.
        SAME: The names of attributes that are equal in all parts whose rows can join, with dots for attributes of
            attributes. None if no rows can, which is the default of targets.
    """

    ROWS: ClassVar[RowNames]
    COUNTS: ClassVar[tuple[str, ...]]
    SAME: ClassVar[tuple[str, ...] | None]

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


class MovesRows(Protocol):
    """A part that moves its rows in a way of its own: captured calls read the rows where they lie."""

    def select_rows(self, row_ids: list[int]) -> None:
        """Keeps these rows, in this order, and drops all others."""
        ...

    def join(self, other: Any, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """Takes in the rows of another part of the same class; see `join_rows`."""
        ...


class JoinableBatch(Protocol):
    """A batch that rows join and leave.

    Attributes:
        state: Its rows and their tokens.
        meter: Counts calls, tokens and seconds.
    """

    state: BatchState
    meter: Meter

    @property
    def parts(self) -> tuple[Any, ...]:
        """All that holds something per row; empty if no rows can join."""
        ...

    def drop_finished(self, at_once: bool = False) -> None:
        """Drops the finished rows, if they are enough of the batch; any number is with `at_once`."""
        ...


def select_rows(part: Any, row_ids: Sequence[int], rows: int) -> None:
    """Keeps some rows of a part, in this order, and drops all others.

    Args:
        row_ids: The indices of the rows that stay.
        rows: B, the number of rows so far.
    """
    _Kept(row_ids, rows).select(part)


def join_rows(
    part: Any,
    other: Any,
    row_ids: Sequence[int],
    state: BatchState,
    other_state: BatchState,
    rows: int | None = None,
) -> None:
    """Takes in the rows of another part of the same class, which must not be used any more.

    Args:
        other: The part whose rows join.
        row_ids: Row i of it becomes row `row_ids[i]`, in the place of a finished row, or is appended.
        state: The batch, before the rows have joined it. Every row has a token, and no window is open.
        other_state: The batch of `other`.
        rows: The number of rows that the part has, if it is not that of the batch.
    """
    _Joined(list(row_ids), state, other_state, rows or len(state.ids)).put(part, other)


def can_join(part: Any, other: Any) -> bool:
    """Whether the rows of `other` can join a part: they are of one class, and all that they consist of can."""
    if type(part) is not type(other):
        return False
    same = getattr(part, "SAME", None if hasattr(part, "forward") else ())
    if same is None or not all(_agree(*map(attrgetter(name), (part, other))) for name in same):
        return False
    return all(_fits(value, getattr(other, each.name, None)) for each, value in _values(part))


def batches_fit(batch: JoinableBatch, other: JoinableBatch) -> bool:
    """Whether the rows of another batch, of the same recipe and with guidance or not as this one, can join it."""
    return type(batch) is type(other) and bool(batch.parts) and all(map(can_join, batch.parts, other.parts))


def join_batches(batch: JoinableBatch, other: JoinableBatch) -> list[int]:
    """Takes the running rows of another batch, which must not be used any more, into a batch.

    They take the places of finished rows, whose tokens are lost, and are appended if there are too few.

    Args:
        other: The other one, whose rows have a token each; it fits.

    Returns:
        The index of each of its rows in `state.ids`.
    """
    other.drop_finished(at_once=True)
    state, new = batch.state, other.state
    row_ids, joining = state.places(len(new.ids)), new.ids.tolist()
    for ours, theirs in zip(batch.parts, other.parts, strict=True):
        join_rows(ours, theirs, row_ids, state, new)
    batch.meter.take_rows(other.meter, state.ids[row_ids].tolist(), joining)
    return row_ids


def _agree(ours: Any, theirs: Any) -> bool:
    return ours is theirs or bool(ours == theirs)


_LEAVES = (Tensor, NotWritten, np.ndarray, Numbers, QuantizedStore, Constraint, ForcedCells, list)


def _fits(value: Any, new: Any) -> bool:
    """Whether a value of an attribute can be joined by another one."""
    leaf = isinstance(value, _LEAVES)
    if leaf or value is None or new is None:
        return True
    inside, theirs = _inside(value), _inside(new)
    if inside is None:
        return can_join(value, new)
    if theirs is None:
        return False
    pairs = zip(inside[1], theirs[1], strict=False)  # what one of them still lacks is made by `before_join`
    return all(_fits(item, their) for (_, item), (_, their) in pairs)


class _Kept:
    """Rows that stay; see `select_rows`."""

    def __init__(self, row_ids: Sequence[int], rows: int) -> None:
        self._row_ids, self._rows = list(row_ids), rows
        self._index = cache(partial(cfg_rows, self._row_ids, rows))  # one upload per device

    def select(self, part: Any) -> None:
        if hasattr(part, "select_rows"):
            cast(MovesRows, part).select_rows(self._row_ids)
            return
        _call(part, "before_move")
        for each, value in _values(part):
            _set(part, each.name, value, self._of(value, each))
        _call(part, "after_move")

    def _of(self, value: Any, each: PerRow) -> Any:
        """The value of an attribute with these rows alone."""
        if isinstance(value, Numbers):
            return Numbers(self._of(value.host, each))
        if isinstance(value, Tensor | NotWritten | np.ndarray | QuantizedStore):
            count = _check_rows(value, each, self._rows)
            if not count:
                return value
            if isinstance(value, np.ndarray):
                return value[_at(each.dim, self._index(count > self._rows, _CPU).numpy())]
            return value[_at(each.dim, self._index(count > self._rows, value.device))]
        if isinstance(value, Constraint | ForcedCells):
            return value.of_rows(self._row_ids)
        if isinstance(value, list):
            _check_items(value, each, self._rows)
            return [value[row] for row in self._row_ids]
        inside = _inside(value)
        if inside is not None:
            return _made(value, inside, [self._of(item, replace(each, name=name)) for name, item in inside[1]])
        if value is not None:
            _check_part(value, each)
            self.select(value)
        return value


class _Joined:
    """Rows that join; see `join_rows`."""

    def __init__(self, row_ids: list[int], state: BatchState, other_state: BatchState, rows: int) -> None:
        self._row_ids, self._states, self._rows = row_ids, (state, other_state), rows

    def put(self, part: Any, other: Any) -> None:
        if hasattr(part, "select_rows"):
            cast(MovesRows, part).join(other, self._row_ids, *self._states)
            return
        for one in (part, other):
            _call(one, "before_move")
        _call(part, "before_join", other, *self._states)
        for each, value in _values(part):
            _set(part, each.name, value, self._of(value, getattr(other, each.name, None), each, part))
        for name in getattr(part, "COUNTS", ()):
            setattr(part, name, getattr(part, name) + getattr(other, name))
        _call(part, "after_join", other)
        _call(part, "after_move")

    def _of(self, value: Any, new: Any, each: PerRow, part: Any) -> Any:
        """The value of an attribute with the rows of `new`."""
        if isinstance(value, Numbers) and isinstance(new, Numbers):
            return Numbers(self._of(value.host, new.host, each, part))
        value, new = (one.dense() if isinstance(one, NotWritten) else one for one in (value, new))
        if not _alike(value, new):
            raise PluginError(
                f"{type(part).__name__}.{each.name}: {type(new).__name__} cannot join {type(value).__name__}; "
                "`before_join` makes both"
            )
        if isinstance(value, Tensor | np.ndarray | QuantizedStore):
            if bool(value.shape[each.dim]) != bool(new.shape[each.dim]):
                name = f"{type(part).__name__}.{each.name}"
                raise PluginError(f"{name} has no rows in one of two batches; `before_join` makes both")
            if not value.shape[each.dim]:
                return value
            _check_rows(value, each, self._rows)
            if each.latest:
                value, new = value[:, -1:], new[:, -1:]
            factor = value.shape[each.dim] // self._rows
            if isinstance(value, np.ndarray):
                return put_host_rows(value, new, self._row_ids, each.dim, factor, each.fill)
            return put_store(value, new, self._row_ids, each.dim, factor, each.fill)
        if isinstance(value, Constraint | ForcedCells):
            return value.with_rows(new, self._rows, self._row_ids)
        if isinstance(value, list):
            _check_items(value, each, self._rows)
            by_row = dict(enumerate(value)) | dict(zip(self._row_ids, new, strict=True))
            return [by_row[row] for row in range(len(by_row))]
        inside, theirs = _inside(value), _inside(new)
        if inside is not None and theirs is not None:
            pairs = zip(inside[1], theirs[1], strict=True)
            new = [self._of(item, their, replace(each, name=name), part) for (name, item), (_, their) in pairs]
            return _made(value, inside, new)
        if value is not None:
            _check_part(value, each)
            self.put(value, new)
        return value


_CPU = torch.device("cpu")
_Items = tuple[Callable[[list[Any]], Any], list[tuple[str, Any]]]


def _alike(value: Any, new: Any) -> bool:
    return type(value) is type(new) or any(isinstance(value, of) and isinstance(new, of) for of in (Tensor, np.ndarray))


def _inside(value: Any) -> _Items | None:
    """The values in a tuple, a dict or a layout, with their names, and what puts others in their place."""
    if isinstance(value, dict):
        return (lambda items: dict(zip(value, items, strict=True))), [(str(key), value[key]) for key in value]
    if isinstance(value, tuple):
        named = type(value) is not tuple  # a named tuple takes its items as arguments
        make: Callable[[list[Any]], Any] = (lambda items: type(value)(*items)) if named else tuple
        return make, [(str(i), item) for i, item in enumerate(value)]
    if isinstance(value, Layout):
        fields = [(each.name, item) for each, item in _values(value)]
        return (lambda items: replace(value, **dict(zip(dict(fields), items, strict=True)))), fields
    return None


def _made(value: Any, inside: _Items, items: list[Any]) -> Any:
    """A value with other items; the same one if they are the same."""
    same = all(new is item for new, (_, item) in zip(items, inside[1], strict=True))
    return value if same else inside[0](items)


def _values(part: Any) -> Iterator[tuple[PerRow, Any]]:
    """The attributes of a part that hold something per row."""
    names = getattr(part, "ROWS", ())
    if isinstance(names, str):
        raise PluginError(f"{type(part).__name__}.ROWS={names!r} is not allowed; it must be a tuple: ({names!r},)")
    for each in names:
        each = PerRow(each) if isinstance(each, str) else each
        if not hasattr(part, each.name):
            raise PluginError(f"{type(part).__name__} has no attribute {each.name!r}, which it names in ROWS")
        yield each, getattr(part, each.name)


def _call(part: Any, name: str, *arguments: Any) -> None:
    function = getattr(part, name, None)
    if function is not None:
        function(*arguments)


def _set(part: Any, name: str, value: Any, new: Any) -> None:
    if new is not value:
        setattr(part, name, new)


def _at(dim: int, index: Any) -> tuple[Any, ...]:
    return *(slice(None),) * dim, index


def _check_items(items: list[Any], each: PerRow, rows: int) -> None:
    """Checks that a list has an item for each row of the batch."""
    if len(items) != rows:
        raise PluginError(f"{each.name} is named in ROWS, and has {len(items)} items in a batch of {rows} rows")


def _check_rows(value: Any, each: PerRow, rows: int) -> int:
    """Checks that a value has no rows, or one or two with guidance for each of the batch; returns how many."""
    count = int(value.shape[each.dim]) if each.dim < len(value.shape) else -1
    if count not in (0, rows, 2 * rows):
        found = "no such axis" if count < 0 else f"{count} rows"
        raise PluginError(
            f"{each.name} is named in ROWS, and has {found} along axis {each.dim} in a batch of {rows}; it must have "
            f"{rows}, or {2 * rows} with guidance"
        )
    return count


def _check_part(value: Any, each: PerRow) -> None:
    """Checks that something inside of a part names what it holds per row."""
    if not hasattr(value, "ROWS") and not hasattr(value, "select_rows"):
        raise PluginError(
            f"{each.name} is named in ROWS, and is a {type(value).__name__}, which has no ROWS of its own"
        )
