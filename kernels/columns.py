"""Kernel 5: columns of K cells, accepted as a whole and resampled by thinning, as in `mmspec.sampling.multi_codebook`.

A column is accepted with probability min(1, prod_k p_k / q_k). A rejected one is resampled from norm((p - q)+) of the
product distributions: sample y ~ p, accept it with probability (1 - q(y) / p(y))+, else sample again. One program per
sequence does both. It computes the numbers of `mmspec.sampling.rng` itself, because their count is not known in
advance.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.inverse_cdf import GROUP, cdf_goal, mass, sample_reference, seek
from mmspec.kernels.philox import UNIFORMS, block, words
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

CHUNK = 8192


def verify_columns(
    p: SoftmaxStats,
    q: SoftmaxStats,
    drafts: Tensor,
    free: Tensor,
    seeds: Tensor,
    positions: Tensor,
    iteration: Tensor,
    max_samples: int,
) -> tuple[Tensor, Tensor]:
    """Tests the m drafted columns of each row from left to right, and resamples the first rejected one.

    Args:
        p: The target distributions of the cells of m + 1 columns, [B, (m + 1) * K].
        q: The draft distributions of the cells of m columns, [B, m * K].
        drafts: int64 [B, m, K].
        free: bool [B, m + 1, K]; forced cells have no factor in any product, and are 0 in the result.
        seeds: int64 [B].
        positions: int64 [B, m + 1].
        iteration: int64 [B, m + 1].
        max_samples: The number of samples of one column after which the residual counts as empty.

    Returns:
        int64 [B], the number of accepted columns; int64 [B, K], the resampled or bonus column, -1 in cells whose p is
            not a distribution. A draft whose q is not one is rejected, and nothing is subtracted.
    """
    return verify_columns_op(*p.source(), *q.source(), drafts, free, seeds, positions, iteration, max_samples)


def verify_columns_reference(
    p: SoftmaxStats,
    q: SoftmaxStats,
    drafts: Tensor,
    free: Tensor,
    seeds: Tensor,
    positions: Tensor,
    iteration: Tensor,
    max_samples: int,
) -> tuple[Tensor, Tensor]:
    """`verify_columns` in torch and float64, one sequence and one sample at a time."""
    batch, m, cells = drafts.shape
    p_probs = p.dense(torch.float64).unflatten(1, (m + 1, cells))
    q_probs = q.dense(torch.float64).unflatten(1, (m, cells))
    accepted = torch.zeros(batch, dtype=torch.int64)
    resampled = torch.zeros(batch, cells, dtype=torch.int64)

    def number(row: int, slot: int, stream: int, index: int) -> Tensor:
        counter = (int(positions[row, slot]), int(iteration[row, slot]), UNIFORMS, index)
        return (block(seeds[row].cpu(), counter)[stream] >> 8).double() * 2.0**-24

    for row in range(batch):
        for slot in range(m):
            x = drafts[row, slot, :, None]
            ratios = (p_probs[row, slot].gather(-1, x) / q_probs[row, slot].gather(-1, x))[:, 0]
            if not number(row, slot, 0, 0) < torch.where(free[row, slot], ratios, 1.0).prod():
                break
            accepted[row] += 1
        slot = int(accepted[row])
        for i in range(max_samples):
            u = torch.stack([number(row, slot, 1, i * cells + k) for k in range(cells)])
            y = sample_reference(p_probs[row, slot], u.to(p_probs.device))
            if slot == m or bool((y < 0).logical_and(free[row, slot]).any()):
                break
            cell = y[:, None]
            shares = (q_probs[row, slot].gather(-1, cell) / p_probs[row, slot].gather(-1, cell))[:, 0]
            covered = torch.where(free[row, slot], shares, 1.0).prod()
            if covered.isnan() or number(row, slot, 0, 1 + i) < 1 - covered:
                break
        resampled[row] = torch.where(free[row, slot], y, 0)
    return accepted.to(drafts.device), resampled.to(drafts.device)


@kernel
def _verify_columns(
    cond, uncond, allowed, floats, ints, q_cond, q_uncond, q_allowed, q_floats, q_ints,
    drafts, free, seeds, positions, iterations, accepted, resampled, m, cells, max_samples, vocab,
    slots, stride_row, stride_slot, stride_column, q_slots, q_stride_row, q_stride_slot, q_stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
    CELLS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    q_source = (
        q_cond, q_uncond, q_allowed, q_floats, q_ints, q_slots, vocab, q_stride_row, q_stride_slot, q_stride_column
    )  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    one = tl.zeros((1,), tl.int64)
    seed = tl.load(seeds + row)
    zeros = seed * 0
    i, going = 0, 1
    while (i < m) & (going != 0):
        chance = tl.full((), 1.0, tl.float64)
        for k in range(0, cells):
            if tl.load(free + (row * (m + 1) + i) * cells + k) != 0:
                x = tl.load(drafts + (row * m + i) * cells + k) + one
                p_x = probabilities(source, (row * (m + 1) + i) * cells + k, x, GUIDED, MASKED, UNIT)
                q_x = probabilities(q_source, (row * m + i) * cells + k, x, Q_GUIDED, Q_MASKED, Q_UNIT)
                chance *= tl.sum(tl.div_rn(p_x, q_x).to(tl.float64), 0)
        at = row * (m + 1) + i
        zero, _, _, _ = words(seed, tl.load(positions + at), tl.load(iterations + at), zeros, zeros)
        u = (zero >> 8).to(tl.float32) * 5.9604644775390625e-08
        going = (u < chance).to(tl.int32)
        i += going
    tl.store(accepted + row, i)

    at = row * (m + 1) + i
    position, iteration = tl.load(positions + at), tl.load(iterations + at)
    ids, lanes = tl.arange(0, CELLS), tl.arange(0, BLOCK)
    column = tl.zeros((CELLS,), tl.int32)
    tries, done = 0, 0
    while done == 0:
        covered = tl.full((), 1.0, tl.float64)
        invalid = 0
        for k in range(0, cells):
            if tl.load(free + at * cells + k) != 0:
                slot = at * cells + k
                total = tl.zeros((), tl.float64)
                for start in range(0, vocab, BLOCK):
                    p = probabilities(source, slot, start + lanes, GUIDED, MASKED, UNIT)
                    total += mass(p, BLOCK, GROUP)
                _, word, _, _ = words(seed, position, iteration, zeros, zeros + tries * cells + k)
                goal = cdf_goal((word >> 8).to(tl.float32) * 5.9604644775390625e-08, total)
                token = tl.full((), -1, tl.int32)
                if total > 0:
                    below = tl.zeros((), tl.float64)
                    for start in range(0, vocab, BLOCK):
                        p = probabilities(source, slot, start + lanes, GUIDED, MASKED, UNIT)
                        found = seek(p, goal - below, BLOCK, GROUP)
                        token = tl.where((token < 0) & (found < BLOCK), start + found, token)
                        below += mass(p, BLOCK, GROUP)
                column = tl.where(ids == k, token, column)
                invalid += (token < 0).to(tl.int32)
                if (i < m) & (token >= 0):
                    p_y = probabilities(source, slot, token + one, GUIDED, MASKED, UNIT)
                    q_y = probabilities(q_source, (row * m + i) * cells + k, token + one, Q_GUIDED, Q_MASKED, Q_UNIT)
                    covered *= tl.sum(tl.div_rn(q_y, p_y).to(tl.float64), 0)
        tries += 1
        zero, _, _, _ = words(seed, position, iteration, zeros, zeros + tries)
        u = (zero >> 8).to(tl.float32) * 5.9604644775390625e-08
        broken = (invalid > 0) | (covered != covered)
        done = ((i == m) | broken | (u < 1 - covered) | (tries >= max_samples)).to(tl.int32)
    is_free = tl.load(free + at * cells + ids, mask=ids < cells, other=0) != 0
    tl.store(resampled + row * cells + ids, tl.where(is_free, column, 0).to(tl.int64), mask=ids < cells)


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
    free: Tensor,
    seeds: Tensor,
    positions: Tensor,
    iteration: Tensor,
    max_samples: int,
) -> tuple[Tensor, Tensor]:
    """`verify_columns` with plain tensors; the first five are p, the next five are q."""
    p, q = (cond, uncond, allowed, floats, ints), (q_cond, q_uncond, q_allowed, q_floats, q_ints)
    numbers = (drafts, free, seeds, positions, iteration)
    if chosen(cond) == "torch":
        return verify_columns_reference(SoftmaxStats(*p), SoftmaxStats(*q), *numbers, max_samples)
    batch, m, cells = drafts.shape
    vocab = cond.shape[-1]
    accepted, resampled = drafts.new_empty((batch,)), drafts.new_empty((batch, cells))
    block = min(max(GROUP, triton.next_power_of_2(vocab)), CHUNK)
    with launchable(cond):
        _verify_columns[(batch,)](
            *p, *q, *(t.contiguous() for t in numbers), accepted, resampled, m, cells, max_samples, vocab,
            cond.shape[1], *cond.stride(), q_cond.shape[1], *q_cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            Q_GUIDED=q_uncond is not None, Q_MASKED=q_allowed is not None, Q_UNIT=q_cond.stride(2) == 1,
            CELLS=triton.next_power_of_2(cells), BLOCK=block, GROUP=GROUP, num_warps=warps(block),
        )  # fmt: skip
    return accepted, resampled


@verify_columns_op.register_fake
def _(*arguments: Tensor | int) -> tuple[Tensor, Tensor]:
    drafts = arguments[10]
    assert isinstance(drafts, Tensor)
    return drafts.new_empty(drafts.shape[:1]), drafts.new_empty((drafts.shape[0], drafts.shape[2]))
