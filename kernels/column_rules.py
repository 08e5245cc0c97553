"""Kernel 26: cells that the columns before them force, and the logits of a window with these cells.

A codebook ends some columns after a marker, such as the first column with an end token, and is padding from then on.
One program per sequence writes the columns that a model reads, searches them for the marker, and looks up what each
cell of the window is forced to. A second kernel writes the logits: those that top-k and top-p keep, or of a forced cell
those that allow its code alone.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.forced_cells import ForcedTable, forced_cells_reference, forced_strides
from mmspec.kernels.softmax_stats import KIND, LAST, LINE, SoftmaxStats, logits, mix
from mmspec.kernels.specialization import kernel

NEVER = 2**40
CHUNK = 4096


def cells_after_reference(
    columns: Tensor,
    before: int,
    tokens: Tensor | None,
    at: Tensor,
    count: int,
    rule: Tensor,
    marker: int,
    searched: int,
    first: int,
    latest: int,
    opening: ForcedTable | None,
) -> Tensor:
    """`cells_after` in torch."""
    positions = at[:, None] + torch.arange(1, count + 1, device=at.device)
    if tokens is not None:
        here = positions - 1
        x = torch.where((here >= first)[..., None], tokens, -1)
        columns.scatter_(1, (here + before)[..., None].expand(x.shape), x)
    found = (columns[:, before:, :searched] == marker).any(-1)
    place = torch.arange(found.shape[1], device=at.device)
    earlier = found[:, None] & (place < positions[..., None])
    ended = torch.where(earlier, place, NEVER).amin(-1)
    if latest >= 0:
        ended = torch.where((ended > latest) & (positions >= latest), latest, ended)
    since = positions - ended
    must = rule.T[since.clamp(0, rule.shape[1] - 1)]
    must = torch.where(since[..., None] >= 0, must, -1)
    if opening is None:
        return must
    begins = forced_cells_reference(opening, positions, len(rule))
    return torch.where(begins >= 0, begins, must)


@kernel
def _cells_after(
    columns, tokens, starts, rule, opening, out, prefix, room, read, count, cells, steps, marker, searched, begin,
    latest, tokens_row, tokens_slot, forced_row, forced_last,
    WRITES: tl.constexpr, ENDS: tl.constexpr, OPENS: tl.constexpr, READ: tl.constexpr, CELLS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lanes, ids, cell = tl.arange(0, BLOCK), tl.arange(0, CELLS), tl.arange(0, READ)
    at = tl.load(starts + row)
    own = columns + (row * room + prefix) * read
    never = tl.full((), 1 << 40, tl.int64)
    ended = never
    for start in range(0, at, BLOCK):
        place = start + lanes
        for k in range(0, searched):
            x = tl.load(own + place * read + k, mask=place < at, other=-1)
            ended = tl.minimum(ended, tl.min(tl.where(x == marker, place.to(tl.int64), never), 0))
    inside = ids < cells
    for slot in range(0, count):
        if WRITES:
            x = tl.load(tokens + row * tokens_row + slot * tokens_slot + cell, mask=cell < read, other=-1)
            x = tl.where(at + slot >= begin, x, -1)
            tl.store(own + (at + slot) * read + cell, x, mask=cell < read)
            marked = tl.max(((x == marker) & (cell < searched)).to(tl.int32), 0)
            ended = tl.where((marked > 0) & (ended > at + slot), at + slot, ended)
        position = at + 1 + slot
        since = position - ended
        if ENDS:
            since = tl.where((ended > latest) & (position >= latest), position - latest, since)
        step = tl.minimum(tl.maximum(since, 0), steps - 1)
        must = tl.load(rule + ids * steps + step, mask=inside & (since >= 0), other=-1)
        if OPENS:
            place = opening + row * forced_row + tl.minimum(position, forced_last) * cells + ids
            first = tl.load(place, mask=inside, other=-1)
            must = tl.where(first >= 0, first, must)
        tl.store(out + (row * count + slot) * cells + ids, must, mask=inside)


@operator("mmspec::cells_after", mutates_args=("columns",))
def cells_after(
    columns: Tensor,
    before: int,
    tokens: Tensor | None,
    at: Tensor,
    count: int,
    rule: Tensor,
    marker: int,
    searched: int,
    first: int,
    latest: int,
    opening: Tensor | None,
) -> Tensor:
    """Writes a window of columns, and gives the forced cells of the column after each of them.

    Args:
        columns: int64 [B, A + N, C], the columns so far, contiguous; A of them precede position 0.
        tokens: int64 [B, W, C], which are written from position `at` on, -1 in place of those before `first`; of any
            strides between rows and slots. None for nothing.
        at: int64 [B]; at least 0 with `tokens`, else -1 and more.
        count: W, the number of positions from `at + 1` on.
        rule: int64 [K, S], contiguous: the code that a cell is forced to s columns after the first marker, -1 for none;
            S - 1 columns and more count as S - 1.
        marker: A code.
        searched: The number of cells in which it is searched, from the first, in all positions from 0 on.
        latest: A position that counts as marked for itself and those after it, unless one before it is; -1 for none.
        opening: A `ForcedTable` of cells that are forced in any case; or None.

    Returns:
        int64 [B, W, K], -1 where a cell is free.
    """
    if chosen(columns) == "torch":
        return cells_after_reference(
            columns, before, tokens, at, count, rule, marker, searched, first, latest, opening
        )  # fmt: skip
    (batch, room, read), (cells, steps) = columns.shape, rule.shape
    out = at.new_empty((batch, count, cells))
    if tokens is not None and read > 1 and tokens.stride(2) != 1:
        tokens = tokens.contiguous()
    strides = (0, 0) if tokens is None else tokens.stride()[:2]
    with launchable(columns):
        _cells_after[(batch,)](
            columns, tokens, at.contiguous(), rule, opening, out, before, room, read, count, cells, steps, marker,
            searched, first, latest, *strides, *forced_strides(opening),
            WRITES=tokens is not None, ENDS=latest >= 0, OPENS=opening is not None,
            READ=triton.next_power_of_2(read), CELLS=triton.next_power_of_2(cells), BLOCK=256, num_warps=4,
        )  # fmt: skip
    return out


@cells_after.register_fake
def _(
    columns: Tensor, before: int, tokens: Tensor | None, at: Tensor, count: int, rule: Tensor, *rest: object
) -> Tensor:
    return at.new_empty((len(at), count, len(rule)))


@lru_cache(maxsize=16)
def _plain(batch: int, slots: int, vocab: int, device: torch.device) -> tuple[Tensor, Tensor]:
    floats = torch.tensor([1.0, 1.0, -torch.inf, 0.0, 1.0], device=device).repeat(batch, slots, 1)
    ints = torch.tensor([0, 0, vocab, -1, 0], dtype=torch.int32, device=device).repeat(batch, slots, 1)
    ints[..., LINE] = torch.arange(batch * slots, device=device).view(batch, slots)
    return floats, ints


def plain_stats(cond: Tensor) -> SoftmaxStats:
    """Slots whose tokens are all kept, for `forced_logits`: their totals are not known. `cond` is [B, S, V]."""
    return SoftmaxStats(cond, None, None, *_plain(*cond.shape, cond.device))


def forced_logits(stats: SoftmaxStats, must: Tensor) -> Tensor:
    """The logits of the kept tokens of some slots, and of forced slots those that allow their code alone.

    Args:
        stats: The slots, [B, S]; logits have the temperature of their slot.
        must: int64 [B, S], the code that a slot is forced to, -1 for none.

    Returns:
        float32 [B, S, V].
    """
    return forced_logits_op(*stats.source(), must)


@kernel
def _forced_logits(
    cond, uncond, allowed, floats, ints, must, out, vocab,
    slots, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    slot = tl.program_id(0).to(tl.int64)
    code = tl.load(must + slot)
    line, kind, last = tl.load(ints + slot * 5), tl.load(ints + slot * 5 + 1), tl.load(ints + slot * 5 + 2)
    scale, temperature = tl.load(floats + slot * 5), tl.load(floats + slot * 5 + 1)
    floor = tl.load(floats + slot * 5 + 2)
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        z = logits(source, line, kind, scale, temperature, at, GUIDED, MASKED, UNIT)
        # What is not a number is kept, so that it is noticed.
        z = tl.where((z < floor) | ((z == floor) & (at > last)), float("-inf"), z)
        z = tl.where(code < 0, z, tl.where(at == code, 0.0, float("-inf")))
        tl.store(out + slot * vocab + at, z, mask=at < vocab)


@operator("mmspec::forced_logits", mutates_args=())
def forced_logits_op(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, must: Tensor
) -> Tensor:
    """`forced_logits` with plain tensors."""
    vocab = cond.shape[-1]
    if chosen(cond) == "torch":
        return forced_logits_reference(SoftmaxStats(cond, uncond, allowed, floats, ints), must)
    out = cond.new_empty((*must.shape, vocab), dtype=torch.float32)
    block = min(max(32, triton.next_power_of_2(vocab)), CHUNK)
    with launchable(cond):
        _forced_logits[(must.numel(),)](
            cond, uncond, allowed, floats, ints, must.contiguous(), out, vocab, cond.shape[1], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, BLOCK=block,
            num_warps=warps(block),
        )  # fmt: skip
    return out


@forced_logits_op.register_fake
def _(cond: Tensor, *rest: Tensor | None) -> Tensor:
    must = rest[-1]
    assert must is not None
    return cond.new_empty((*must.shape, cond.shape[-1]), dtype=torch.float32)


def forced_logits_reference(stats: SoftmaxStats, must: Tensor) -> Tensor:
    """`forced_logits` in torch."""
    line = stats.ints[..., LINE].long()
    row, slot = line // stats.cond.shape[1], line % stats.cond.shape[1]
    scale, temperature, floor = stats.floats[..., :3, None].unbind(-2)
    uncond = None if stats.uncond is None else stats.uncond[row, slot]
    z = mix(stats.cond[row, slot], uncond, stats.allowed, scale, temperature, stats.ints[..., KIND])
    codes = torch.arange(z.shape[-1], device=z.device)
    z = z.masked_fill((z < floor) | ((z == floor) & (codes > stats.ints[..., LAST, None])), -torch.inf)
    only = torch.zeros_like(z).masked_fill_(codes != must[..., None], -torch.inf)
    return torch.where(must[..., None] < 0, z, only)
