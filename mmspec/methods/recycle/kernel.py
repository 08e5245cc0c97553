"""Kernel 14: the most likely tokens of a window are stored by their neighbors; see `mmspec.methods.recycle.token_init`.

One program per sequence, slot by slot: of several slots with the same neighbors the last one is kept. Slots that a row
does not have are left out; see `mmspec.kernels.own_slots`.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.own_slots import own_slots, own_slots_reference
from mmspec.kernels.softmax_stats import BEST
from mmspec.kernels.specialization import kernel


def recycle_reference(
    tokens: Tensor, rows: Tensor, positions: Tensor, limits: Tensor, drafts: Tensor, ints: Tensor, table: Tensor,
    line: int, vocab: int,
) -> None:  # fmt: skip
    """`recycle` in torch, token by token."""
    counts = own_slots_reference(positions, limits)
    for row in range(len(rows)):
        start = int(positions[row, 0])
        own = [*tokens[int(rows[row]), :start].tolist(), *drafts[row].tolist()]
        for slot in range(counts[row]):
            position = start + slot
            left, up = own[position - 1], own[position - 2] if position > 1 else -1
            if line:
                up = own[position - line] if position >= line else -1
                left = up if position % line == 0 and up >= 0 else left
            entry = (max(up + 1, 0) * vocab + max(left, 0)) % table.shape[1]
            table[row, entry] = ints[row, slot, BEST]


@kernel
def _recycle(
    tokens, rows, positions, limits, drafts, ints, table, most, line, vocab, width, drafts_row, table_row,
    LINES: tl.constexpr, PLACE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    start = tl.load(positions + row * width).to(tl.int32)
    own = tokens + tl.load(rows + row) * most
    drafted = drafts + row * drafts_row
    # The neighbors of a slot: the tokens before it, and in a token map the one above.
    second = tl.load(own + start - 2, mask=start > 1, other=-1)
    left = tl.load(own + start - 1)
    for slot in range(0, own_slots(start, tl.load(limits + row), width)):
        up, beside = second, left
        if LINES:
            position = start + slot
            above = tl.load(own + position - line, mask=(slot < line) & (position >= line), other=-1)
            up = tl.where(slot < line, above, tl.load(drafted + slot - line, mask=slot >= line, other=-1))
            beside = tl.where((position % line == 0) & (up >= 0), up, left)
        token = tl.load(ints + (row * width + slot) * 5 + PLACE)
        entry = (tl.maximum(up + 1, 0) * vocab + tl.maximum(beside, 0)) % table_row
        tl.store(table + row * table_row + entry, token)
        second, left = left, tl.load(drafted + slot, mask=slot < width - 1, other=0)


@operator("mmspec::recycle", mutates_args=("table",))
def recycle(
    tokens: Tensor, rows: Tensor, positions: Tensor, limits: Tensor, drafts: Tensor, ints: Tensor, table: Tensor,
    line: int, vocab: int,
) -> None:  # fmt: skip
    """Stores the most likely token of each slot of a window that its row has.

    Args:
        tokens: int64 [rows, N], the tokens before the window, contiguous.
        rows: int64 [B], the row of `tokens` of each row.
        positions: int64 [B, W], those of the window; the first one is at least 1.
        limits: int64 [B], the number of tokens at which a row ends.
        drafts: int64 [B, W - 1], its drafts, of any stride between rows.
        ints: int32 [B, W, 5], of its distributions; see `mmspec.kernels.softmax_stats`.
        table: int32 [B, entries], contiguous; the token after each pair of neighbors, see
            `mmspec.methods.recycle.token_init.table_entry`.
        line: Positions per line of a token map; 0 for a stream, whose upper neighbor is the token before the last.
        vocab: V.
    """
    if chosen(tokens) == "torch":
        return recycle_reference(tokens, rows, positions, limits, drafts, ints, table, line, vocab)
    drafts = drafts if drafts.stride(-1) == 1 else drafts.contiguous()
    with launchable(tokens):
        _recycle[(len(rows),)](
            tokens, rows, positions.contiguous(), limits, drafts, ints.contiguous(), table, tokens.shape[1], line,
            vocab, positions.shape[1], drafts.stride(0), table.shape[1], LINES=line > 0, PLACE=BEST, num_warps=1,
        )  # fmt: skip
    return None


@recycle.register_fake
def _(*given: Tensor | int) -> None:
    return None
