"""Kernel 8: the drafts of a window, reused ones and new ones; see `mmspec.drafters.token_init`.

One program per sequence. It takes the tokens of the previous window from the first reused one on, with their
distributions, and fills the slots after them by token initialization, from left to right: each new token depends on the
one before it, so that in torch every slot would be several launches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.softmax_stats import POINT
from mmspec.kernels.specialization import kernel

LEFT, UP, RANDOM, TABLE, RECYCLE = range(5)


class Previous(NamedTuple):
    """The previous window.

    Attributes:
        tokens: int64 [B, W'], its tokens after the coupling.
        floats: float32 [B, W', 5], of the distributions that they follow.
        ints: int32 [B, W', 5], likewise.
        accepted: int64 [B]; drafts are reused from slot `accepted + 1` on.
    """

    tokens: Tensor
    floats: Tensor
    ints: Tensor
    accepted: Tensor


class Drafts(NamedTuple):
    """The output of `draft_window`.

    Attributes:
        window: int64 [B, m + 1], the last token of each row, and m drafts; 0 for tokens below 0, which stand for
            invalid distributions.
        floats: float32 [B, m, 5], of the distributions that the drafts were sampled from: those of the previous window,
            or all mass on the token.
        ints: int32 [B, m, 5], likewise.
    """

    window: Tensor
    floats: Tensor
    ints: Tensor


def draft_window(
    tokens: Tensor,
    rows: Tensor,
    positions: Tensor,
    u: Tensor | None,
    init: int,
    line: int,
    vocab_size: int,
    table: Tensor | None = None,
    forced: Tensor | None = None,
    previous: Previous | None = None,
) -> Drafts:
    """Drafts m tokens of each row.

    Args:
        tokens: int64 [rows, N], the tokens so far, contiguous.
        rows: int64 [B], the row of `tokens` of each row.
        positions: int64 [B, m + 1]; the first one is at least 1, and that of the first draft.
        u: float32 [B, m + 1] in [0, 1), for RANDOM; None for the others.
        init: LEFT, UP, RANDOM, TABLE or RECYCLE.
        line: Positions per line of a token map; 0 for a stream, whose upper neighbor is the token before the last.
        vocab_size: V.
        table: Integer [V + 1, V], for TABLE; see `mmspec.drafters.ngram.NGramTable`. int32 [B, entries] for RECYCLE;
            see `mmspec.drafters.token_init.LearnedTable`. Contiguous.
        forced: int64 [n] or [B, n], the token that a position is forced to, -1 for none; positions past the end count
            as the last. None if no position is forced.
        previous: The previous window; None to fill all slots.
    """
    known: tuple[Tensor | None, ...] = (None,) * 4 if previous is None else tuple(previous)
    return Drafts(*draft_window_op(tokens, rows, positions, u, init, line, vocab_size, table, forced, *known))


def draft_window_reference(
    tokens: Tensor,
    rows: Tensor,
    positions: Tensor,
    u: Tensor | None,
    init: int,
    line: int,
    vocab_size: int,
    table: Tensor | None,
    forced: Tensor | None,
    previous: Previous | None,
) -> Drafts:
    """`draft_window` in torch, token by token."""
    batch, m = positions.shape[0], positions.shape[1] - 1
    window = torch.zeros(batch, m + 1, dtype=torch.int64, device=tokens.device)
    floats = torch.ones(batch, m, 5, device=tokens.device)
    ints = torch.zeros(batch, m, 5, dtype=torch.int32, device=tokens.device)
    for row in range(batch):
        own, start = tokens[int(rows[row])].tolist(), int(positions[row, 0])
        found: list[int] = []
        if previous is not None:
            first = int(previous.accepted[row]) + 1
            found = previous.tokens[row, first : first + m].tolist()
            floats[row, : len(found)] = previous.floats[row, first : first + m]
            ints[row, : len(found)] = previous.ints[row, first : first + m]
        for slot in range(len(found), m):
            position = start + slot
            so_far = own[:start] + found
            left, up = so_far[-1], so_far[-2] if len(so_far) > 1 else -1
            if line:
                up = so_far[position - line] if position >= line else -1
                left = up if position % line == 0 and up >= 0 else left
            if init == UP:
                token = up if up >= 0 else left
            elif init == RANDOM:
                assert u is not None
                token = min(int(u[row, slot] * vocab_size), vocab_size - 1)
            elif init == TABLE and table is not None:
                token = int(table[up, left])
            elif init == RECYCLE and table is not None:
                known = int(table[row, (max(up + 1, 0) * vocab_size + max(left, 0)) % table.shape[1]])
                token = known if known >= 0 else up if line and up >= 0 else left
            else:
                token = left
            if forced is not None:
                must = forced if forced.ndim == 1 else forced[row]
                only = int(must[min(position, len(must) - 1)])
                token = only if only >= 0 else token
            found.append(token)
            ints[row, slot, POINT] = token
        window[row] = torch.tensor([own[start - 1], *found])
    return Drafts(window.clamp(min=0), floats, ints)


@triton.jit
def _pick(held, lanes, index):
    """One number of a vector."""
    return tl.sum(tl.where(lanes == index, held, 0), 0)


@kernel
def _draft_window(
    tokens, rows, positions, us, table, forced, before, before_floats, before_ints, accepted, window, floats, ints,
    m, most, line, vocab, before_width, forced_row, forced_last, table_row,
    INIT: tl.constexpr, LINES: tl.constexpr, FORCED: tl.constexpr, REUSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    start = tl.load(positions + row * (m + 1)).to(tl.int32)
    own = tokens + tl.load(rows + row) * most
    last = tl.load(own + start - 1)
    second = tl.load(own + start - 2, mask=start > 1, other=-1)
    reused = 0
    held = tl.zeros((BLOCK,), tl.int64)
    if REUSES:
        first = tl.load(accepted + row).to(tl.int32) + 1
        reused = tl.minimum(before_width - first, m)
        inside = lanes < reused
        source = row * before_width + first + lanes
        held = tl.load(before + source, mask=inside, other=0)
        for number in tl.static_range(5):
            one = tl.load(before_floats + source * 5 + number, mask=inside, other=0.0)
            tl.store(floats + (row * m + lanes) * 5 + number, one, mask=inside)
            two = tl.load(before_ints + source * 5 + number, mask=inside, other=0)
            tl.store(ints + (row * m + lanes) * 5 + number, two, mask=inside)
    for slot in range(reused, m):
        position = start + slot
        left = tl.where(slot == 0, last, _pick(held, lanes, slot - 1))
        up = tl.where(slot == 0, second, tl.where(slot == 1, last, _pick(held, lanes, slot - 2)))
        if LINES:
            above = tl.load(own + position - line, mask=(slot < line) & (position >= line), other=-1)
            up = tl.where(slot < line, above, _pick(held, lanes, slot - line))
            left = tl.where((position % line == 0) & (up >= 0), up, left)
        token = left
        if INIT == 1:
            token = tl.where(up >= 0, up, left)
        elif INIT == 2:
            scaled = tl.load(us + row * (m + 1) + slot) * vocab
            token = tl.minimum(scaled.to(tl.int64), vocab - 1)
        elif INIT == 3:
            token = tl.load(table + tl.where(up < 0, vocab, up) * vocab + tl.maximum(left, 0)).to(tl.int64)
        elif INIT == 4:
            entry = (tl.maximum(up + 1, 0) * vocab + tl.maximum(left, 0)) % table_row
            known = tl.load(table + row * table_row + entry).to(tl.int64)
            token = tl.where(known >= 0, known, tl.where((up >= 0) & LINES, up, left))
        if FORCED:
            only = tl.load(forced + row * forced_row + tl.minimum(position, forced_last))
            token = tl.where(only >= 0, only, token)
        held = tl.where(lanes == slot, token, held)
    new = (lanes >= reused) & (lanes < m)
    for number in tl.static_range(5):
        tl.store(floats + (row * m + lanes) * 5 + number, 1.0, mask=new)
        point = held.to(tl.int32) if number == 3 else tl.zeros((BLOCK,), tl.int32)
        tl.store(ints + (row * m + lanes) * 5 + number, point, mask=new)
    tl.store(window + row * (m + 1), tl.maximum(last, 0))
    tl.store(window + row * (m + 1) + 1 + lanes, tl.maximum(held, 0), mask=lanes < m)


@operator("mmspec::draft_window", mutates_args=())
def draft_window_op(
    tokens: Tensor,
    rows: Tensor,
    positions: Tensor,
    u: Tensor | None,
    init: int,
    line: int,
    vocab_size: int,
    table: Tensor | None,
    forced: Tensor | None,
    before: Tensor | None,
    before_floats: Tensor | None,
    before_ints: Tensor | None,
    accepted: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`draft_window` with plain tensors; the last four are the previous window, or None."""
    reuses = before is not None
    if chosen(tokens) == "torch":
        previous = Previous(before, before_floats, before_ints, accepted) if reuses else None  # type: ignore[arg-type]
        return draft_window_reference(
            tokens, rows, positions, u, init, line, vocab_size, table, forced, previous
        )  # fmt: skip
    outputs = new_drafts(positions)
    m = positions.shape[1] - 1
    last = 0 if forced is None else forced.shape[-1] - 1
    forced_row = last + 1 if forced is not None and forced.ndim == 2 else 0
    width = 0 if before is None else before.shape[1]
    given = [None if t is None else t.contiguous() for t in (before, before_floats, before_ints, accepted)]
    u = None if u is None else u.contiguous()
    with launchable(tokens):
        _draft_window[(len(positions),)](
            tokens, rows, positions.contiguous(), u, table, forced, *given, *outputs,
            m, tokens.shape[1], line, vocab_size, width, forced_row, last, 0 if table is None else table.shape[1],
            INIT=init, LINES=line > 0, FORCED=forced is not None, REUSES=reuses,
            BLOCK=max(32, triton.next_power_of_2(m)), num_warps=1,
        )  # fmt: skip
    return outputs


@draft_window_op.register_fake
def _(tokens: Tensor, rows: Tensor, positions: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    return new_drafts(positions)


def new_drafts(positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the drafts of windows, int64 [B, m + 1], and for their statistics, [B, m, 5] twice."""
    batch, m = positions.shape[0], positions.shape[1] - 1
    return (
        positions.new_empty(positions.shape),
        positions.new_empty((batch, m, 5), dtype=torch.float32),
        positions.new_empty((batch, m, 5), dtype=torch.int32),
    )
