"""Kernel 15: stochastic n-grams: the likeliest tokens of a window are stored, and drafts are sampled from them.

See `mmspec.methods.stand.drafter`. One program per slot finds its likeliest tokens in one read of its logits, and
stores them unless a later slot of the window has the same neighbors, or its row does not have it
(`mmspec.kernels.own_slots`). One program per sequence drafts from left to right: each new token depends on the one
before it, so that in torch every slot would be some forty launches.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.likeliest import likeliest_reference, seek_likeliest
from mmspec.kernels.own_slots import own_slots, own_slots_reference
from mmspec.kernels.softmax_stats import LAST, LINE, POINT, SoftmaxStats
from mmspec.kernels.specialization import kernel
from mmspec.kernels.token_init import _pick, new_drafts

CHUNK = 8192


class Stored(NamedTuple):
    """The tables of the rows of a batch; see `mmspec.methods.recycle.token_init.table_entry` for their entries.

    Attributes:
        tokens: int32 [B, entries, n], the likeliest tokens after a pair of neighbors, the likeliest first; contiguous.
        probs: float32 [B, entries, n], their probabilities, which add up to 1; all 0 where nothing is stored;
            contiguous.
    """

    tokens: Tensor
    probs: Tensor


class StoredDrafts(NamedTuple):
    """The output of `draft_stored`.

    Attributes:
        window: int64 [B, m + 1], the last token of each row, and m drafts; 0 for tokens below 0.
        logits: float32 [B, m, V], of the distributions that were sampled from; minus infinity in all other slots.
        floats: float32 [B, m, 5], see `mmspec.kernels.softmax_stats.SoftmaxStats`.
        ints: int32 [B, m, 5], likewise; a draft that was not sampled has all mass.
    """

    window: Tensor
    logits: Tensor
    floats: Tensor
    ints: Tensor


def _neighbors(so_far: list[int], line: int) -> tuple[int, int]:
    """The left and the upper neighbor of the token after these."""
    position = len(so_far)
    left, up = so_far[-1], so_far[-2] if position > 1 else -1
    if line:
        up = so_far[position - line] if position >= line else -1
        left = up if position % line == 0 and up >= 0 else left
    return left, up


def draft_stored_reference(
    tokens: Tensor, rows: Tensor, positions: Tensor, u: Tensor, stored: Stored, line: int, forced: Tensor | None,
    logits: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`draft_stored` in torch, token by token; `logits` are minus infinity."""
    batch, m, vocab_size = logits.shape
    window = torch.zeros(batch, m + 1, dtype=torch.int64, device=tokens.device)
    floats = torch.ones(batch, m, 5, device=tokens.device)
    ints = torch.zeros(batch, m, 5, dtype=torch.int32, device=tokens.device)
    for row in range(batch):
        start = int(positions[row, 0])
        so_far = tokens[int(rows[row]), :start].tolist()
        for slot in range(m):
            left, up = _neighbors(so_far, line)
            entry = (max(up + 1, 0) * vocab_size + max(left, 0)) % stored.tokens.shape[1]
            known, probs = stored.tokens[row, entry].long(), stored.probs[row, entry]
            sums = probs.cumsum(0)
            place = int((sums <= u[row, slot] * sums[-1]).sum())
            place = max(min(place, int((probs > 0).sum()) - 1), 0)
            sampled = token = int(known[place]) if sums[-1] > 0 else up if line and up >= 0 else left
            if forced is not None:
                must = forced if forced.ndim == 1 else forced[row]
                only = int(must[min(start + slot, len(must) - 1)])
                token = only if only >= 0 else token
            if sums[-1] > 0 and token == sampled:
                logits[row, slot, known[probs > 0]] = probs[probs > 0].log()
                floats[row, slot] = torch.tensor([1.0, 1.0, -torch.inf, 0.0, 1.0])
                ints[row, slot, LINE], ints[row, slot, LAST], ints[row, slot, POINT] = row * m + slot, vocab_size, -1
            else:
                ints[row, slot, POINT] = token
            so_far.append(token)
        window[row] = torch.tensor(so_far[start - 1 :])
    return window.clamp(min=0), floats, ints


def store_reference(
    p: SoftmaxStats, tokens: Tensor, rows: Tensor, positions: Tensor, limits: Tensor, drafts: Tensor, stored: Stored,
    line: int,
) -> None:  # fmt: skip
    """`store` in torch, slot by slot."""
    counts = own_slots_reference(positions, limits)
    best, shares = likeliest_reference(p, stored.tokens.shape[2])
    for row in range(len(rows)):
        start = int(positions[row, 0])
        own = [*tokens[int(rows[row]), :start].tolist(), *drafts[row].tolist()]
        for slot in range(counts[row]):
            left, up = _neighbors(own[: start + slot], line)
            entry = (max(up + 1, 0) * p.shape[-1] + max(left, 0)) % stored.tokens.shape[1]
            stored.tokens[row, entry] = best[row, slot].int()
            stored.probs[row, entry] = shares[row, slot] / shares[row, slot].sum()


@kernel
def _draft_stored(
    tokens, rows, positions, us, table, shares, forced, window, logits, floats, ints,
    m, most, line, vocab, forced_row, forced_last, table_row, count,
    LINES: tl.constexpr, FORCED: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes, ranks = tl.arange(0, BLOCK), tl.arange(0, KEPT)
    start = tl.load(positions + row * (m + 1)).to(tl.int32)
    own = tokens + tl.load(rows + row) * most
    last = tl.load(own + start - 1)
    second = tl.load(own + start - 2, mask=start > 1, other=-1)
    held = tl.zeros((BLOCK,), tl.int64)
    points = tl.zeros((BLOCK,), tl.int32)  # whether all mass is on the token
    for slot in range(0, m):
        position = start + slot
        left = tl.where(slot == 0, last, _pick(held, lanes, slot - 1))
        up = tl.where(slot == 0, second, tl.where(slot == 1, last, _pick(held, lanes, slot - 2)))
        if LINES:
            above = tl.load(own + position - line, mask=(slot < line) & (position >= line), other=-1)
            up = tl.where(slot < line, above, _pick(held, lanes, slot - line))
            left = tl.where((position % line == 0) & (up >= 0), up, left)
        entry = (tl.maximum(up + 1, 0) * vocab + tl.maximum(left, 0)) % table_row
        at = (row * table_row + entry) * count + ranks
        known = tl.load(table + at, mask=ranks < count, other=0)
        probs = tl.load(shares + at, mask=ranks < count, other=0.0)
        sums = tl.cumsum(probs, 0)
        total = tl.sum(tl.where(ranks == count - 1, sums, 0.0), 0)
        goal = tl.load(us + row * (m + 1) + slot) * total
        place = tl.sum(((sums <= goal) & (ranks < count)).to(tl.int32), 0)
        place = tl.maximum(tl.minimum(place, tl.sum((probs > 0).to(tl.int32), 0) - 1), 0)
        sampled = _pick(known, ranks, place).to(tl.int64)
        sampled = tl.where(total > 0, sampled, tl.where((up >= 0) & LINES, up, left))
        token = sampled
        if FORCED:
            only = tl.load(forced + row * forced_row + tl.minimum(position, forced_last))
            token = tl.where(only >= 0, only, token)
        is_stored = (total > 0) & (token == sampled)
        there = logits + (row * m + slot) * vocab + known
        tl.store(there, tl.log(probs), mask=tl.where(is_stored, probs, 0.0) > 0)
        held = tl.where(lanes == slot, token, held)
        points = tl.where(lanes == slot, 1 - is_stored.to(tl.int32), points)
    inside, point = lanes < m, points > 0
    of_floats, of_ints = floats + (row * m + lanes) * 5, ints + (row * m + lanes) * 5
    tl.store(of_floats, 1.0, mask=inside)
    tl.store(of_floats + 1, 1.0, mask=inside)
    tl.store(of_floats + 2, tl.where(point, 1.0, float("-inf")), mask=inside)
    tl.store(of_floats + 3, tl.where(point, 1.0, 0.0), mask=inside)
    tl.store(of_floats + 4, 1.0, mask=inside)
    tl.store(of_ints, tl.where(point, 0, (row * m + lanes).to(tl.int32)), mask=inside)
    tl.store(of_ints + 1, 0, mask=inside)
    tl.store(of_ints + 2, tl.where(point, 0, vocab), mask=inside)
    tl.store(of_ints + 3, tl.where(point, held.to(tl.int32), -1), mask=inside)
    tl.store(of_ints + 4, 0, mask=inside)
    tl.store(window + row * (m + 1), tl.maximum(last, 0))
    tl.store(window + row * (m + 1) + 1 + lanes, tl.maximum(held, 0), mask=inside)


@triton.jit
def _entry(own, drafted, start, slot, line, vocab, table_row, LINES: tl.constexpr):
    """The entry of a slot of a window, by its neighbors."""
    position = start + slot
    before = tl.load(own + position - 1, mask=slot == 0, other=0)
    left = tl.where(slot == 0, before, tl.load(drafted + slot - 1, mask=slot > 0, other=0))
    if LINES:
        committed = tl.load(own + position - line, mask=(slot < line) & (position >= line), other=-1)
        up = tl.where(slot < line, committed, tl.load(drafted + slot - line, mask=slot >= line, other=-1))
        left = tl.where((position % line == 0) & (up >= 0), up, left)
    else:
        committed = tl.load(own + position - 2, mask=(slot < 2) & (position > 1), other=-1)
        up = tl.where(slot < 2, committed, tl.load(drafted + slot - 2, mask=slot >= 2, other=-1))
    return (tl.maximum(up + 1, 0) * vocab + tl.maximum(left, 0)) % table_row


@kernel
def _store(
    cond, uncond, allowed, floats, ints, tokens, rows, positions, limits, drafts, table, shares, slots, vocab,
    stride_row, stride_slot, stride_column, most, line, width, drafts_row, table_row, count,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, LINES: tl.constexpr, KEPT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    row, slot = at // width, (at % width).to(tl.int32)
    start = tl.load(positions + row * width).to(tl.int32)
    own = tokens + tl.load(rows + row) * most
    drafted = drafts + row * drafts_row
    entry = _entry(own, drafted, start, slot, line, vocab, table_row, LINES)
    held = own_slots(start, tl.load(limits + row), width)
    wanted = slot < held
    for later in range(slot + 1, held):
        wanted = wanted & (_entry(own, drafted, start, later, line, vocab, table_row, LINES) != entry)
    if wanted:
        source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
        known, best, rank = seek_likeliest(source, at, vocab, count, GUIDED, MASKED, UNIT, KEPT, BLOCK)
        inside = tl.arange(0, KEPT) < count
        there = (row * table_row + entry) * count + rank
        tl.store(table + there, known, mask=inside)
        tl.store(shares + there, best / tl.sum(tl.where(inside, best, 0.0), 0), mask=inside)


@operator("mmspec::draft_stored", mutates_args=("logits",))
def draft_stored_op(
    tokens: Tensor, rows: Tensor, positions: Tensor, u: Tensor, stored_tokens: Tensor, stored_probs: Tensor, line: int,
    forced: Tensor | None, logits: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`draft_stored` with plain tensors."""
    stored = Stored(stored_tokens, stored_probs)
    if chosen(tokens) == "torch":
        return draft_stored_reference(tokens, rows, positions, u, stored, line, forced, logits)
    window, floats, ints = new_drafts(positions)
    (batch, m, vocab), count = logits.shape, stored_tokens.shape[2]
    last = 0 if forced is None else forced.shape[-1] - 1
    forced_row = last + 1 if forced is not None and forced.ndim == 2 else 0
    with launchable(tokens):
        _draft_stored[(batch,)](
            tokens, rows, positions.contiguous(), u.contiguous(), *stored, forced, window, logits, floats, ints,
            m, tokens.shape[1], line, vocab, forced_row, last, stored_tokens.shape[1], count,
            LINES=line > 0, FORCED=forced is not None, KEPT=triton.next_power_of_2(count),
            BLOCK=max(32, triton.next_power_of_2(m)), num_warps=1,
        )  # fmt: skip
    return window, floats, ints


@draft_stored_op.register_fake
def _(tokens: Tensor, rows: Tensor, positions: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    return new_drafts(positions)


def draft_stored(
    tokens: Tensor, rows: Tensor, positions: Tensor, u: Tensor, stored: Stored, line: int, vocab_size: int,
    forced: Tensor | None = None,
) -> StoredDrafts:  # fmt: skip
    """Drafts m tokens of each row, sampled from what is stored after their neighbors.

    After neighbors that have not occurred, the upper neighbor of a token map is drafted, or the left one.

    Args:
        tokens: int64 [rows, N], the tokens so far, contiguous.
        rows: int64 [B], the row of `tokens` of each row.
        positions: int64 [B, m + 1]; the first one is at least 1, and that of the first draft.
        u: float32 [B, m + 1] in [0, 1).
        stored: The tables.
        line: Positions per line of a token map; 0 for a stream, whose upper neighbor is the token before the last.
        vocab_size: V.
        forced: int64 [n] or [B, n], the token that a position is forced to, -1 for none; positions past the end count
            as the last. None if no position is forced.
    """
    logits = u.new_full((len(positions), positions.shape[1] - 1, vocab_size), -torch.inf)
    window, floats, ints = draft_stored_op(tokens, rows, positions, u, *stored, line, forced, logits)
    return StoredDrafts(window, logits, floats, ints)


@operator("mmspec::store", mutates_args=("stored_tokens", "stored_probs"))
def store_op(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, tokens: Tensor,
    rows: Tensor, positions: Tensor, limits: Tensor, drafts: Tensor, stored_tokens: Tensor, stored_probs: Tensor,
    line: int,
) -> None:  # fmt: skip
    """`store` with plain tensors; the first five are p."""
    stored = Stored(stored_tokens, stored_probs)
    if chosen(cond) == "torch":
        p = SoftmaxStats(cond, uncond, allowed, floats, ints)
        return store_reference(p, tokens, rows, positions, limits, drafts, stored, line)
    drafts = drafts if drafts.stride(-1) == 1 else drafts.contiguous()
    (batch, width), vocab, count = positions.shape, cond.shape[-1], stored_tokens.shape[2]
    block = min(max(32, triton.next_power_of_2(vocab)), CHUNK)
    with launchable(cond):
        _store[(batch * width,)](
            cond, uncond, allowed, floats, ints, tokens, rows, positions.contiguous(), limits, drafts,
            *stored, cond.shape[1], vocab, *cond.stride(), tokens.shape[1], line, width, drafts.stride(0),
            stored_tokens.shape[1], count,
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, LINES=line > 0,
            KEPT=triton.next_power_of_2(count), BLOCK=block, num_warps=warps(block),
        )  # fmt: skip
    return None


@store_op.register_fake
def _(*given: Tensor | int | None) -> None:
    return None


def store(
    p: SoftmaxStats, tokens: Tensor, rows: Tensor, positions: Tensor, limits: Tensor, drafts: Tensor, stored: Stored,
    line: int,
) -> None:  # fmt: skip
    """Stores the likeliest tokens of each slot that a row has by its neighbors; of equally likely ones the first.

    Args:
        p: The distributions of the window, [B, W, V].
        tokens: int64 [rows, N], the tokens before the window, contiguous.
        rows: int64 [B], the row of `tokens` of each row.
        positions: int64 [B, W], those of the window; the first one is at least 1.
        limits: int64 [B], the number of tokens at which a row ends.
        drafts: int64 [B, W - 1], its drafts, of any stride between rows.
        stored: The tables. Of several slots with the same neighbors the last one is stored.
    """
    store_op(*p.source(), tokens, rows, positions, limits, drafts, *stored, line)
