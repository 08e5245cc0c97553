"""Kernel 5: columns of K cells, accepted as a whole and resampled by thinning, as in `mmspec.sampling.multi_codebook`.

A column is accepted with probability min(1, prod_k p_k / q_k). A rejected one is resampled from norm((p - q)+) of the
product distributions: sample y ~ p, accept it with probability (1 - q(y) / p(y))+, else sample again. One program per
sequence verifies a window, one per slot couples it. They compute the numbers of `mmspec.sampling.rng` themselves,
because their count is not known in advance. Forced cells are constants, and have no factor in any product.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.accept import BROKEN_DRAFT, Verified
from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.forced_cells import ForcedTable, forced_cell, forced_cells_reference, forced_strides
from mmspec.kernels.inverse_cdf import GROUP, cdf_goal, mass, sample_reference, seek
from mmspec.kernels.philox import UNIFORMS, block, words
from mmspec.kernels.softmax_stats import TOTAL, SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

CHUNK = 8192


class ColumnNumbers(NamedTuple):
    """What the random numbers of a window are computed from.

    Attributes:
        seeds: int64 [B].
        positions: int64 [B, W].
        iteration: int64 [B, W].
    """

    seeds: Tensor
    positions: Tensor
    iteration: Tensor


def verify_columns(
    p: SoftmaxStats,
    q: SoftmaxStats,
    drafts: Tensor,
    forced: ForcedTable | None,
    numbers: ColumnNumbers,
    max_samples: int,
) -> Verified:
    """Tests the m drafted columns of each row from left to right, and resamples the first rejected one.

    Args:
        p: The target distributions of the cells of m + 1 columns, [B, (m + 1) * K].
        q: The draft distributions of the cells of m columns, [B, m * K].
        drafts: int64 [B, m, K]. An id outside the vocabulary counts as the last entry of a distribution.
        forced: The forced cells; None if all are free.
        numbers: Of m + 1 positions.
        max_samples: The number of samples of one column after which the residual counts as empty.

    Returns:
        `tokens` int64 [B, m + 1, K], with the resampled or bonus column also in the free slot; -1 in cells of it whose
            p is not a distribution. `found` int32 [B, 2 + (m + 1) * K], without distances.
    """
    return Verified(*verify_columns_op(*p.source(), *q.source(), drafts, forced, *numbers, max_samples))


def couple_columns(
    p: SoftmaxStats,
    q: SoftmaxStats | None,
    drafts: Tensor | None,
    forced: ForcedTable | None,
    numbers: ColumnNumbers,
    max_samples: int,
    accepted: Tensor | None = None,
) -> Tensor:
    """The columns of all slots of a window under the maximal coupling, int64 [B, m + 1, K]; arguments as above.

    Args:
        q: None to sample every slot from p.
        drafts: None without `q`.
        accepted: int64 [B], the accepted drafts, after which the next column is known: no slot up to it is coupled, and
            it gets its draft. None couples all.

    Returns:
        -1 in cells whose p is not a distribution.
    """
    if q is None:
        return couple_columns_op(
            *p.source(), None, None, None, None, None, drafts, forced, *numbers, max_samples, accepted
        )
    return couple_columns_op(*p.source(), *q.source(), drafts, forced, *numbers, max_samples, accepted)


def _number(numbers: ColumnNumbers, row: int, slot: int, stream: int, index: int) -> Tensor:
    counter = (int(numbers.positions[row, slot]), int(numbers.iteration[row, slot]), UNIFORMS, index)
    return (block(numbers.seeds[row].cpu(), counter)[stream] >> 8).double() * 2.0**-24


def _chance(p: Tensor, q: Tensor, draft: Tensor, must: Tensor) -> Tensor:
    """The acceptance probability of a column [K] under p and q, [K, V]."""
    x = draft.clamp(0, p.shape[-1] - 1)[:, None]
    return torch.where(must < 0, (p.gather(-1, x) / q.gather(-1, x))[:, 0], 1.0).prod()


def _sampled(
    p: Tensor, q: Tensor | None, must: Tensor, numbers: ColumnNumbers, row: int, slot: int, max_samples: int
) -> Tensor:
    """A column from norm((p - q)+), or from p."""
    cells, free = len(p), must < 0
    y = must
    for i in range(max_samples):
        u = torch.stack([_number(numbers, row, slot, 1, i * cells + k) for k in range(cells)])
        y = torch.where(free, sample_reference(p, u.to(p.device)), must)
        if q is None or bool((y < 0).any()):
            break
        cell = y.clamp(0, p.shape[-1] - 1)[:, None]
        covered = torch.where(free, (q.gather(-1, cell) / p.gather(-1, cell))[:, 0], 1.0).prod()
        if covered.isnan() or _number(numbers, row, slot, 0, 1 + i) < 1 - covered:
            break
    return y


def verify_columns_reference(
    p: SoftmaxStats,
    q: SoftmaxStats,
    drafts: Tensor,
    forced: ForcedTable | None,
    numbers: ColumnNumbers,
    max_samples: int,
) -> Verified:
    """`verify_columns` in torch and float64, one sequence and one sample at a time."""
    batch, m, cells = drafts.shape
    p_probs = p.dense(torch.float64).unflatten(1, (m + 1, cells))
    q_probs = q.dense(torch.float64).unflatten(1, (m, cells))
    must = forced_cells_reference(forced, numbers.positions, cells)
    accepted = torch.zeros(batch, dtype=torch.int64)
    tokens = torch.cat([drafts, torch.zeros_like(must[:, :1])], dim=1)
    broken = []
    for row in range(batch):
        for slot in range(m):
            chance = _chance(p_probs[row, slot], q_probs[row, slot], drafts[row, slot], must[row, slot])
            if not _number(numbers, row, slot, 0, 0) < chance:
                break
            accepted[row] += 1
        slot = int(accepted[row])
        minus = None if slot == m else q_probs[row, slot]
        column = _sampled(p_probs[row, slot], minus, must[row, slot], numbers, row, slot, max_samples)
        tokens[row, slot] = tokens[row, m] = column
        parts = (column < 0).any(), p.floats[row, :, TOTAL].isnan().any(), q.floats[row, :, TOTAL].isnan().any()
        broken.append(sum(int(part) * bit for part, bit in zip(parts, (1, 2, BROKEN_DRAFT), strict=True)))
    tokens = torch.where(must >= 0, must, tokens)
    first = accepted.to(drafts.device)
    counts = torch.stack([first.int(), torch.tensor(broken, dtype=torch.int32, device=first.device)], dim=1)
    return Verified(tokens, first, torch.cat([counts, tokens.flatten(1).int()], dim=1))


def couple_columns_reference(
    p: SoftmaxStats,
    q: SoftmaxStats | None,
    drafts: Tensor | None,
    forced: ForcedTable | None,
    numbers: ColumnNumbers,
    max_samples: int,
    accepted: Tensor | None,
) -> Tensor:
    """`couple_columns` in torch and float64, one slot and one sample at a time."""
    batch, width = numbers.positions.shape
    cells = p.ints.shape[1] // width
    p_probs = p.dense(torch.float64).unflatten(1, (width, cells))
    q_probs = None if q is None else q.dense(torch.float64).unflatten(1, (width - 1, cells))
    must = forced_cells_reference(forced, numbers.positions, cells)
    tokens = torch.zeros_like(must)
    for row in range(batch):
        for slot in range(width):
            minus = None if q_probs is None or slot == width - 1 else q_probs[row, slot]
            if drafts is not None and minus is not None:
                draft = drafts[row, slot]
                chance = _chance(p_probs[row, slot], minus, draft, must[row, slot])
                known = accepted is not None and slot <= int(accepted[row])
                if known or _number(numbers, row, slot, 0, 0) < chance:
                    tokens[row, slot] = draft
                    continue
            tokens[row, slot] = _sampled(p_probs[row, slot], minus, must[row, slot], numbers, row, slot, max_samples)
    return torch.where(must >= 0, must, tokens)


@triton.jit
def _uniform(word):
    return (word >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _column_chance(
    source, slot, q_source, q_slot, draft, table, row, position, cells, FORCED: tl.constexpr,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
):  # fmt: skip
    """The acceptance probability of the column at address `draft`; slots are those of its first cell."""
    one = tl.zeros((1,), tl.int64)
    chance = tl.full((), 1.0, tl.float64)
    for k in range(0, cells):
        if forced_cell(table, row, position, cells, k, FORCED) < 0:
            x = tl.minimum(tl.maximum(tl.load(draft + k), 0), source[6] - 1) + one
            p_x = probabilities(source, slot + k, x, GUIDED, MASKED, UNIT)
            q_x = probabilities(q_source, q_slot + k, x, Q_GUIDED, Q_MASKED, Q_UNIT)
            chance *= tl.sum(tl.div_rn(p_x, q_x).to(tl.float64), 0)
    return chance


@triton.jit
def _sample_column(
    source, slot, q_source, q_slot, minus, table, row, position, iteration, seed, cells, max_samples,
    FORCED: tl.constexpr, GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
    CELLS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A column, int32 [CELLS], from norm((p - q)+), or where `minus` is 0 from p; -1 in cells without distribution."""
    vocab = source[6]
    ids, lanes = tl.arange(0, CELLS), tl.arange(0, BLOCK)
    one, zeros = tl.zeros((1,), tl.int64), seed * 0
    column = tl.zeros((CELLS,), tl.int32)
    tries, done = 0, 0
    while done == 0:
        covered = tl.full((), 1.0, tl.float64)
        invalid = 0
        for k in range(0, cells):
            token = forced_cell(table, row, position, cells, k, FORCED).to(tl.int32)
            if token < 0:
                total = tl.zeros((), tl.float64)
                for start in range(0, vocab, BLOCK):
                    p = probabilities(source, slot + k, start + lanes, GUIDED, MASKED, UNIT)
                    total += mass(p, BLOCK, GROUP)
                _, word, _, _ = words(seed, position, iteration, zeros, zeros + tries * cells + k)
                goal = cdf_goal(_uniform(word), total)
                if total > 0:
                    below = tl.zeros((), tl.float64)
                    for start in range(0, vocab, BLOCK):
                        p = probabilities(source, slot + k, start + lanes, GUIDED, MASKED, UNIT)
                        found = seek(p, goal - below, BLOCK, GROUP)
                        token = tl.where((token < 0) & (found < BLOCK), start + found, token)
                        below += mass(p, BLOCK, GROUP)
                invalid += (token < 0).to(tl.int32)
                if (minus != 0) & (token >= 0):
                    p_y = probabilities(source, slot + k, token + one, GUIDED, MASKED, UNIT)
                    q_y = probabilities(q_source, q_slot + k, token + one, Q_GUIDED, Q_MASKED, Q_UNIT)
                    covered *= tl.sum(tl.div_rn(q_y, p_y).to(tl.float64), 0)
            column = tl.where(ids == k, token, column)
        tries += 1
        zero, _, _, _ = words(seed, position, iteration, zeros, zeros + tries)
        broken = (invalid > 0) | (covered != covered)
        done = ((minus == 0) | broken | (_uniform(zero) < 1 - covered) | (tries >= max_samples)).to(tl.int32)
    return column


@triton.jit
def _any_broken(floats, count, LANES: tl.constexpr):
    """Whether one of `count` slots has no distribution: 1 or 0."""
    lanes = tl.arange(0, LANES)
    broken = tl.zeros((LANES,), tl.int32)
    for start in range(0, count, LANES):
        total = tl.load(floats + (start + lanes) * 5 + 4, mask=start + lanes < count, other=1.0)
        broken += (total != total).to(tl.int32)
    return (tl.sum(broken, 0) > 0).to(tl.int32)


@kernel
def _verify_columns(
    cond, uncond, allowed, floats, ints, q_cond, q_uncond, q_allowed, q_floats, q_ints,
    drafts, forced, seeds, positions, iterations, tokens, accepted, found, m, cells, max_samples, vocab,
    drafts_row, forced_row, forced_last,
    slots, stride_row, stride_slot, stride_column, q_slots, q_stride_row, q_stride_slot, q_stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr, FORCED: tl.constexpr,
    CELLS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    q_source = (
        q_cond, q_uncond, q_allowed, q_floats, q_ints, q_slots, vocab, q_stride_row, q_stride_slot, q_stride_column
    )  # fmt: skip
    table = (forced, forced_row, forced_last)
    row = tl.program_id(0).to(tl.int64)
    seed = tl.load(seeds + row)
    zeros = seed * 0
    i, going = 0, 1
    while (i < m) & (going != 0):
        at = row * (m + 1) + i
        position = tl.load(positions + at)
        chance = _column_chance(
            source, at * cells, q_source, (row * m + i) * cells, drafts + row * drafts_row + i * cells, table, row,
            position, cells, FORCED, GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT,
        )  # fmt: skip
        zero, _, _, _ = words(seed, position, tl.load(iterations + at), zeros, zeros)
        going = (_uniform(zero) < chance).to(tl.int32)
        i += going
    at = row * (m + 1) + i
    minus = (i < m).to(tl.int32)
    column = _sample_column(
        source, at * cells, q_source, (row * m + i * minus) * cells, minus, table, row, tl.load(positions + at),
        tl.load(iterations + at), seed, cells, max_samples,
        FORCED, GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT, CELLS, BLOCK, GROUP,
    )  # fmt: skip
    tl.store(accepted + row, i)
    report = found + row * (2 + (m + 1) * cells)
    invalid = (tl.min(column, 0) < 0).to(tl.int32)
    invalid += 2 * _any_broken(floats + row * (m + 1) * cells * 5, (m + 1) * cells, 128)
    invalid += 4 * _any_broken(q_floats + row * m * cells * 5, m * cells, 128)
    tl.store(report, i)
    tl.store(report + 1, invalid)
    ids = tl.arange(0, CELLS)
    inside = ids < cells
    for j in range(0, m + 1):
        x = tl.load(drafts + row * drafts_row + j * cells + ids, mask=inside & (j < m), other=0)
        x = tl.where((j == i) | (j == m), column.to(tl.int64), x)
        if FORCED:
            position = tl.load(positions + row * (m + 1) + j)
            place = forced + row * forced_row + tl.minimum(position, forced_last) * cells + ids
            must = tl.load(place, mask=inside, other=-1)
            x = tl.where(must >= 0, must, x)
        tl.store(tokens + (row * (m + 1) + j) * cells + ids, x, mask=inside)
        tl.store(report + 2 + j * cells + ids, x.to(tl.int32), mask=inside)


@operator("mmspec::verify_columns", mutates_args=())
def verify_columns_op(
    cond: Tensor,
    uncond: Tensor | None,
    allowed: Tensor | None,
    floats: Tensor,
    ints: Tensor,
    q_cond: Tensor,
    q_uncond: Tensor | None,
    q_allowed: Tensor | None,
    q_floats: Tensor,
    q_ints: Tensor,
    drafts: Tensor,
    forced: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
    iteration: Tensor,
    max_samples: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """`verify_columns` with plain tensors; the first five are p, the next five are q."""
    p, q = (cond, uncond, allowed, floats, ints), (q_cond, q_uncond, q_allowed, q_floats, q_ints)
    numbers = ColumnNumbers(seeds, positions, iteration)
    if chosen(cond) == "torch":
        before, minus = SoftmaxStats(*p), SoftmaxStats(*q)
        tokens, first, found = verify_columns_reference(before, minus, drafts, forced, numbers, max_samples)
        return tokens, first, found
    batch, m, cells = drafts.shape
    outputs = _verified(positions, cells)
    vocab = cond.shape[-1]
    size = min(max(GROUP, triton.next_power_of_2(vocab)), CHUNK)
    drafts = drafts if drafts.stride()[1:] == (cells, 1) else drafts.contiguous()
    with launchable(cond):
        _verify_columns[(batch,)](
            *p, *q, drafts, forced, *(t.contiguous() for t in numbers), *outputs, m, cells, max_samples, vocab,
            drafts.stride(0), *forced_strides(forced),
            cond.shape[1], *cond.stride(), q_cond.shape[1], *q_cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            Q_GUIDED=q_uncond is not None, Q_MASKED=q_allowed is not None, Q_UNIT=q_cond.stride(2) == 1,
            FORCED=forced is not None,
            CELLS=triton.next_power_of_2(cells), BLOCK=size, GROUP=GROUP, num_warps=warps(size),
        )  # fmt: skip
    return outputs


@verify_columns_op.register_fake
def _(*arguments: Tensor | int) -> tuple[Tensor, Tensor, Tensor]:
    drafts, positions = arguments[10], arguments[13]
    assert isinstance(drafts, Tensor) and isinstance(positions, Tensor)
    return _verified(positions, drafts.shape[2])


def _verified(positions: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for what `verify_columns` returns."""
    batch, width = positions.shape
    return (
        positions.new_empty((batch, width, cells)),
        positions.new_empty((batch,)),
        positions.new_empty((batch, 2 + width * cells), dtype=torch.int32),
    )


@kernel
def _couple_columns(
    cond, uncond, allowed, floats, ints, q_cond, q_uncond, q_allowed, q_floats, q_ints,
    drafts, forced, seeds, positions, iterations, accepted, out, width, cells, max_samples, vocab,
    drafts_row, forced_row, forced_last,
    slots, stride_row, stride_slot, stride_column, q_slots, q_stride_row, q_stride_slot, q_stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr, FORCED: tl.constexpr,
    DRAFTED: tl.constexpr, COUNTED: tl.constexpr, CELLS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    q_source = (
        q_cond, q_uncond, q_allowed, q_floats, q_ints, q_slots, vocab, q_stride_row, q_stride_slot, q_stride_column
    )  # fmt: skip
    table = (forced, forced_row, forced_last)
    at = tl.program_id(0).to(tl.int64)
    row, i = at // width, at % width
    position, iteration, seed = tl.load(positions + at), tl.load(iterations + at), tl.load(seeds + row)
    ids = tl.arange(0, CELLS)
    column = tl.zeros((CELLS,), tl.int32)
    keep, minus, q_slot = 0, 0, row * 0
    if DRAFTED:  # noqa: SIM102 (known when it is compiled)
        if i < width - 1:
            draft = drafts + row * drafts_row + i * cells
            q_slot, minus = (row * (width - 1) + i) * cells, 1
            if COUNTED:
                keep = (i <= tl.load(accepted + row)).to(tl.int32)
            if keep == 0:
                chance = _column_chance(
                    source, at * cells, q_source, q_slot, draft, table, row, position, cells,
                    FORCED, GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT,
                )  # fmt: skip
                zeros = seed * 0
                zero, _, _, _ = words(seed, position, iteration, zeros, zeros)
                keep = (_uniform(zero) < chance).to(tl.int32)
            if keep != 0:
                column = tl.load(draft + ids, mask=ids < cells, other=0).to(tl.int32)
    if keep == 0:
        column = _sample_column(
            source, at * cells, q_source, q_slot, minus, table, row, position, iteration, seed, cells, max_samples,
            FORCED, GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT, CELLS, BLOCK, GROUP,
        )  # fmt: skip
    if FORCED:
        place = forced + row * forced_row + tl.minimum(position, forced_last) * cells + ids
        must = tl.load(place, mask=ids < cells, other=-1)
        column = tl.where(must >= 0, must.to(tl.int32), column)
    tl.store(out + at * cells + ids, column.to(tl.int64), mask=ids < cells)


@operator("mmspec::couple_columns", mutates_args=())
def couple_columns_op(
    cond: Tensor,
    uncond: Tensor | None,
    allowed: Tensor | None,
    floats: Tensor,
    ints: Tensor,
    q_cond: Tensor | None,
    q_uncond: Tensor | None,
    q_allowed: Tensor | None,
    q_floats: Tensor | None,
    q_ints: Tensor | None,
    drafts: Tensor | None,
    forced: Tensor | None,
    seeds: Tensor,
    positions: Tensor,
    iteration: Tensor,
    max_samples: int,
    accepted: Tensor | None,
) -> Tensor:
    """`couple_columns` with plain tensors; the first five are p, the next five are q, or None."""
    p, q = (cond, uncond, allowed, floats, ints), (q_cond, q_uncond, q_allowed, q_floats, q_ints)
    numbers = ColumnNumbers(seeds, positions, iteration)
    if chosen(cond) == "torch":
        minus = None if q_cond is None else SoftmaxStats(*q)  # type: ignore[arg-type]
        return couple_columns_reference(SoftmaxStats(*p), minus, drafts, forced, numbers, max_samples, accepted)
    cells = ints.shape[1] // positions.shape[1]
    out = positions.new_empty((*positions.shape, cells))
    vocab = cond.shape[-1]
    size = min(max(GROUP, triton.next_power_of_2(vocab)), CHUNK)
    if drafts is not None and drafts.stride()[1:] != (cells, 1):
        drafts = drafts.contiguous()
    q_shape = (1, 0, 0, 1) if q_cond is None else (q_cond.shape[1], *q_cond.stride())
    with launchable(cond):
        _couple_columns[(positions.numel(),)](
            *p, *q, drafts, forced, *(t.contiguous() for t in numbers), accepted, out, positions.shape[1], cells,
            max_samples, vocab, 0 if drafts is None else drafts.stride(0), *forced_strides(forced),
            cond.shape[1], *cond.stride(), *q_shape,
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            Q_GUIDED=q_uncond is not None, Q_MASKED=q_allowed is not None, Q_UNIT=q_shape[-1] == 1,
            FORCED=forced is not None, DRAFTED=drafts is not None, COUNTED=accepted is not None,
            CELLS=triton.next_power_of_2(cells), BLOCK=size, GROUP=GROUP, num_warps=warps(size),
        )  # fmt: skip
    return out


@couple_columns_op.register_fake
def _(*arguments: Tensor | int | None) -> Tensor:
    ints, positions = arguments[4], arguments[13]
    assert isinstance(ints, Tensor) and isinstance(positions, Tensor)
    return positions.new_empty((*positions.shape, ints.shape[1] // positions.shape[1]))
