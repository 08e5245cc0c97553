"""Kernel 25: the drafts of a window of columns, reused ones and new ones; see `mmspec.drafters.columns.token_init`.

One program per sequence takes the columns of the previous window from the first reused one on, with their
distributions, and fills the slots after them from left to right, codebook by codebook, with forced cells in place. A
second kernel stores the most likely codes of a window by the codes before them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.columns import ColumnNumbers
from mmspec.kernels.forced_cells import ForcedTable, forced_cells_reference, forced_strides
from mmspec.kernels.own_slots import own_slots, own_slots_reference
from mmspec.kernels.philox import uniforms_reference, words
from mmspec.kernels.softmax_stats import BEST, POINT
from mmspec.kernels.specialization import kernel
from mmspec.kernels.token_init import Drafts, Previous

LEFT, RANDOM, RECYCLE = range(3)


def draft_columns(
    tokens: Tensor,
    rows: Tensor,
    numbers: ColumnNumbers,
    init: int,
    vocab_size: int,
    table: Tensor | None = None,
    forced: ForcedTable | None = None,
    previous: Previous | None = None,
) -> Drafts:
    """Drafts m columns of each row.

    Args:
        tokens: int64 [rows, N, K], the columns so far, contiguous.
        rows: int64 [B], the row of `tokens` of each row.
        numbers: Of m + 1 positions, of which the first is at least 1, and that of the first draft.
        init: LEFT, RANDOM or RECYCLE.
        vocab_size: V.
        table: int32 [B, K, V], contiguous, for RECYCLE: the code after each code.
        forced: The forced cells; None if all are free.
        previous: The previous window, int64 [B, W', K] and [B, W', K, 5]; None to fill all slots.

    Returns:
        `window` int64 [B, m + 1, K], with forced ids as they are; `floats` and `ints` [B, m, K, 5].
    """
    known: tuple[Tensor | None, ...] = (None,) * 4 if previous is None else tuple(previous)
    return Drafts(*draft_columns_op(tokens, rows, *numbers, init, vocab_size, table, forced, *known))


def draft_columns_reference(
    tokens: Tensor,
    rows: Tensor,
    numbers: ColumnNumbers,
    init: int,
    vocab_size: int,
    table: Tensor | None,
    forced: ForcedTable | None,
    previous: Previous | None,
) -> Drafts:
    """`draft_columns` in torch, column by column."""
    (batch, width), cells = numbers.positions.shape, tokens.shape[-1]
    window, floats, ints = new_columns(numbers.positions, cells)
    floats.fill_(1.0)
    ints.zero_()
    must = forced_cells_reference(forced, numbers.positions, cells)
    u = uniforms_reference(*numbers, 0, cells)[3]  # the stream INIT
    for row in range(batch):
        reused = 0
        window[row, 0] = tokens[int(rows[row]), int(numbers.positions[row, 0]) - 1]
        if previous is not None:
            first = int(previous.accepted[row]) + 1
            reused = min(previous.tokens.shape[1] - first, width - 1)
            source = slice(first, first + reused)
            window[row, 1 : 1 + reused] = previous.tokens[row, source]
            floats[row, :reused], ints[row, :reused] = previous.floats[row, source], previous.ints[row, source]
        for slot in range(reused, width - 1):
            column = window[row, slot].clamp(0, vocab_size - 1)
            if init == RANDOM:
                column = (u[row, slot] * vocab_size).long().clamp(max=vocab_size - 1)
            elif init == RECYCLE and table is not None:
                column = table[row].gather(1, column[:, None])[:, 0].long()
            window[row, slot + 1] = torch.where(must[row, slot] >= 0, must[row, slot], column)
            ints[row, slot, :, POINT] = window[row, slot + 1].clamp(0, vocab_size - 1)
    return Drafts(window.clamp_(min=0), floats, ints)


@kernel
def _draft_columns(
    tokens, rows, seeds, positions, iterations, table, forced, before, before_floats, before_ints, accepted,
    window, floats, ints, m, cells, most, vocab, before_width, forced_row, forced_last,
    INIT: tl.constexpr, FORCED: tl.constexpr, REUSES: tl.constexpr, CELLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    ids, lanes = tl.arange(0, CELLS), tl.arange(0, BLOCK)
    inside = ids < cells
    start = tl.load(positions + row * (m + 1))
    seed, iteration = tl.load(seeds + row), tl.load(iterations + row * (m + 1))
    left = tl.load(tokens + (tl.load(rows + row) * most + start - 1) * cells + ids, mask=inside, other=0)
    own = window + row * (m + 1) * cells
    tl.store(own + ids, tl.maximum(left, 0), mask=inside)
    reused = 0
    if REUSES:
        first = tl.load(accepted + row).to(tl.int32) + 1
        reused = tl.minimum(before_width - first, m)
        source, there = (row * before_width + first) * cells, row * m * cells
        for at in range(0, reused * cells, BLOCK):
            here = at + lanes
            x = tl.load(before + source + here, mask=here < reused * cells, other=0)
            tl.store(own + cells + here, tl.maximum(x, 0), mask=here < reused * cells)
        for at in range(0, reused * cells * 5, BLOCK):
            here = at + lanes
            number = tl.load(before_floats + source * 5 + here, mask=here < reused * cells * 5, other=0.0)
            tl.store(floats + there * 5 + here, number, mask=here < reused * cells * 5)
            whole = tl.load(before_ints + source * 5 + here, mask=here < reused * cells * 5, other=0)
            tl.store(ints + there * 5 + here, whole, mask=here < reused * cells * 5)
        latest = tl.load(before + source + (reused - 1) * cells + ids, mask=inside & (reused > 0), other=0)
        left = tl.where(reused > 0, latest, left)
    for slot in range(reused, m):
        column = tl.minimum(tl.maximum(left, 0), vocab - 1)
        if INIT == 1:
            zeros = column * 0
            _, _, _, word = words(seed + zeros, start + slot + zeros, iteration + zeros, zeros, ids)
            scaled = (word >> 8).to(tl.float32) * 5.9604644775390625e-08 * vocab
            column = tl.minimum(scaled.to(tl.int64), vocab - 1)
        elif INIT == 2:
            column = tl.load(table + (row * cells + ids) * vocab + column, mask=inside, other=0).to(tl.int64)
        if FORCED:
            place = forced + row * forced_row + tl.minimum(start + slot, forced_last) * cells + ids
            must = tl.load(place, mask=inside, other=-1)
            column = tl.where(must >= 0, must, column)
        tl.store(own + (slot + 1) * cells + ids, tl.maximum(column, 0), mask=inside)
        entry = tl.minimum(tl.maximum(column, 0), vocab - 1).to(tl.int32)
        place = ((row * m + slot) * cells + ids) * 5
        for number in tl.static_range(5):
            tl.store(floats + place + number, 1.0, mask=inside)
            tl.store(ints + place + number, entry if number == 3 else entry * 0, mask=inside)
        left = column


@operator("mmspec::draft_columns", mutates_args=())
def draft_columns_op(
    tokens: Tensor,
    rows: Tensor,
    seeds: Tensor,
    positions: Tensor,
    iteration: Tensor,
    init: int,
    vocab_size: int,
    table: Tensor | None,
    forced: Tensor | None,
    before: Tensor | None,
    before_floats: Tensor | None,
    before_ints: Tensor | None,
    accepted: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`draft_columns` with plain tensors; the last four are the previous window, or None."""
    numbers, reuses, cells = ColumnNumbers(seeds, positions, iteration), before is not None, tokens.shape[-1]
    if chosen(tokens) == "torch":
        previous = Previous(before, before_floats, before_ints, accepted) if reuses else None  # type: ignore[arg-type]
        return draft_columns_reference(tokens, rows, numbers, init, vocab_size, table, forced, previous)
    outputs = new_columns(positions, cells)
    given = [None if t is None else t.contiguous() for t in (before, before_floats, before_ints, accepted)]
    with launchable(tokens):
        _draft_columns[(len(positions),)](
            tokens, rows, *(t.contiguous() for t in numbers), table, forced, *given, *outputs,
            positions.shape[1] - 1, cells, tokens.shape[1], vocab_size, 0 if before is None else before.shape[1],
            *forced_strides(forced), INIT=init, FORCED=forced is not None, REUSES=reuses,
            CELLS=triton.next_power_of_2(cells), BLOCK=128, num_warps=1,
        )  # fmt: skip
    return outputs


@draft_columns_op.register_fake
def _(tokens: Tensor, rows: Tensor, seeds: Tensor, positions: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    return new_columns(positions, tokens.shape[-1])


def new_columns(positions: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the drafts of windows, int64 [B, m + 1, K], and for their statistics, [B, m, K, 5] twice."""
    batch, width = positions.shape
    return (
        positions.new_empty((batch, width, cells)),
        positions.new_empty((batch, width - 1, cells, 5), dtype=torch.float32),
        positions.new_empty((batch, width - 1, cells, 5), dtype=torch.int32),
    )


def recycle_columns_reference(columns: Tensor, positions: Tensor, limits: Tensor, ints: Tensor, table: Tensor) -> None:
    """`recycle_columns` in torch, column by column."""
    left = columns.clamp(0, table.shape[-1] - 1)
    for row, count in enumerate(own_slots_reference(positions, limits)):
        for slot in range(count):
            table[row].scatter_(1, left[row, slot, :, None], ints[row, slot, :, BEST, None])


@kernel
def _recycle_columns(
    columns, positions, limits, ints, table, width, cells, vocab, columns_row, PLACE: tl.constexpr, CELLS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    ids = tl.arange(0, CELLS)
    inside = ids < cells
    start = tl.load(positions + row * width).to(tl.int32)
    for slot in range(0, own_slots(start, tl.load(limits + row), width)):
        left = tl.load(columns + row * columns_row + slot * cells + ids, mask=inside, other=0)
        left = tl.minimum(tl.maximum(left, 0), vocab - 1)
        best = tl.load(ints + ((row * width + slot) * cells + ids) * 5 + PLACE, mask=inside, other=0)
        tl.store(table + (row * cells + ids) * vocab + left, best, mask=inside)


@operator("mmspec::recycle_columns", mutates_args=("table",))
def recycle_columns(columns: Tensor, positions: Tensor, limits: Tensor, ints: Tensor, table: Tensor) -> None:
    """Stores the most likely code of each cell that a row has by the code before it; of several the last slot's.

    Args:
        columns: int64 [B, W, K], the column before each slot: the last committed one, and the drafts.
        positions: int64 [B, W], those of the window.
        limits: int64 [B], the number of columns at which a row ends.
        ints: int32 [B, W, K, 5], of the distributions of the window; see `mmspec.kernels.softmax_stats`.
        table: int32 [B, K, V], contiguous.
    """
    if chosen(ints) == "torch":
        return recycle_columns_reference(columns, positions, limits, ints, table)
    batch, width, cells = columns.shape
    columns = columns if columns.stride()[1:] == (cells, 1) else columns.contiguous()
    with launchable(ints):
        _recycle_columns[(batch,)](
            columns, positions.contiguous(), limits, ints.contiguous(), table, width, cells, table.shape[-1],
            columns.stride(0), PLACE=BEST, CELLS=triton.next_power_of_2(cells), num_warps=1,
        )  # fmt: skip
    return None


@recycle_columns.register_fake
def _(*given: Tensor) -> None:
    return None
