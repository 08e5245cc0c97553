"""Kernel 3: resampling of rejected drafts from the residual norm((p - q)+).

One program per slot; programs of inactive slots exit at once, so that only rejected slots read the logits of p and q.
Where p = q to the last bit the residual is empty, which can only happen by rounding, and the token is sampled from p
itself.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.inverse_cdf import GROUP, cdf_goal, group_sums, place, sample_reference, seek_group, seek_lane
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

CHUNK = 8192  # tokens of a slot that are read at once


def tiles(vocab: int) -> tuple[int, int, int]:
    """How a program reads a slot: the tokens of a tile, the power of two of tiles that suffices, and its warps."""
    block = max(GROUP, min(CHUNK, triton.next_power_of_2(vocab)))
    return block, triton.next_power_of_2(triton.cdiv(vocab, block)), warps(block)


def resample(p: SoftmaxStats, q: SoftmaxStats, active: Tensor, u: Tensor) -> Tensor:
    """Samples from norm((p - q)+) in the active slots.

    Args:
        p: The target distributions of m slots.
        q: The draft distributions of m slots.
        active: bool [B, m].
        u: float32 [B, m] in [0, 1).

    Returns:
        int64 [B, m]; -1 in inactive slots, and where p is not a distribution.
    """
    return resample_op(*p.source(), *q.source(), active, u)


def resample_reference(p: SoftmaxStats, q: SoftmaxStats, active: Tensor, u: Tensor) -> Tensor:
    """`resample` in torch and float64."""
    p_probs, q_probs = p.dense(torch.float64), q.dense(torch.float64)
    left = (p_probs - q_probs.nan_to_num()).clamp(min=0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p_probs)
    return torch.where(active, sample_reference(left, u), -1)


@triton.jit
def _left(
    source, slot, q_source, q_slot, columns, stage,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
):  # fmt: skip
    """The residual (p - q)+ of the tokens `columns`; in stage 1, and where q is not a distribution, p."""
    p = probabilities(source, slot, columns, GUIDED, MASKED, UNIT)
    q = probabilities(q_source, q_slot, columns, Q_GUIDED, Q_MASKED, Q_UNIT)
    return tl.where((q == q) & (stage == 0), tl.maximum(p - q, 0.0), p)


@triton.jit
def residual_sample(
    source, slot, q_source, q_slot, u,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A sample at u from the residual of a slot of p and a slot of q, int32; -1 where p is not a distribution.

    A row is read once, in CHUNKS tiles, of which only the sums of the groups are kept; then the sampled group again.
    """
    vocab = source[6]
    token = tl.full((), -1, tl.int32)
    lanes = tl.arange(0, BLOCK)
    # Stage 0 samples from the residual; if it is empty, stage 1 samples from p.
    stage, total = -1, tl.zeros((), tl.float64)
    sums = tl.zeros((CHUNKS * (BLOCK // GROUP),), tl.float64)
    while (stage < 1) & (total <= 0):
        stage += 1
        sums = tl.zeros((CHUNKS * (BLOCK // GROUP),), tl.float64)
        for start in range(0, BLOCK if CHUNKS == 1 else vocab, BLOCK):
            left = _left(
                source, slot, q_source, q_slot, start + lanes, stage, GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT
            )  # fmt: skip
            sums += place(group_sums(left, BLOCK, GROUP), start, BLOCK, GROUP, CHUNKS)
        total = tl.sum(sums, 0)
    if total > 0:
        goal = cdf_goal(u, total)
        group, base = seek_group(sums, goal, CHUNKS * (BLOCK // GROUP))
        columns = group * GROUP + tl.arange(0, GROUP)
        inner = _left(
            source, slot, q_source, q_slot, columns, stage, GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT
        )  # fmt: skip
        token = group * GROUP + seek_lane(inner, base, goal, GROUP)
    return token


@kernel
def _resample(
    cond, uncond, allowed, floats, ints, q_cond, q_uncond, q_allowed, q_floats, q_ints, active, us, tokens,
    vocab, slots, stride_row, stride_slot, stride_column, q_slots, q_stride_row, q_stride_slot, q_stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    q_source = (
        q_cond, q_uncond, q_allowed, q_floats, q_ints, q_slots, vocab, q_stride_row, q_stride_slot, q_stride_column
    )  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    token = tl.full((), -1, tl.int32)
    if tl.load(active + slot) != 0:
        token = residual_sample(
            source, slot, q_source, slot, tl.load(us + slot),
            GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT, CHUNKS, BLOCK, GROUP,
        )  # fmt: skip
    tl.store(tokens + slot, token.to(tl.int64))


@operator("mmspec::resample", mutates_args=())
def resample_op(
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
    active: Tensor,
    u: Tensor,
) -> Tensor:
    """`resample` with plain tensors; the first five are p, the next five are q."""
    p, q = (cond, uncond, allowed, floats, ints), (q_cond, q_uncond, q_allowed, q_floats, q_ints)
    if chosen(cond) == "torch":
        return resample_reference(SoftmaxStats(*p), SoftmaxStats(*q), active, u)
    vocab = cond.shape[-1]
    tokens = torch.empty(active.shape, dtype=torch.int64, device=active.device)
    block, chunks, many = tiles(vocab)
    with launchable(cond):
        _resample[(active.numel(),)](
            *p, *q, active.contiguous(), u.contiguous(), tokens,
            vocab, cond.shape[1], *cond.stride(), q_cond.shape[1], *q_cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            Q_GUIDED=q_uncond is not None, Q_MASKED=q_allowed is not None, Q_UNIT=q_cond.stride(2) == 1,
            CHUNKS=chunks, BLOCK=block, GROUP=GROUP, num_warps=many,
        )  # fmt: skip
    return tokens


@resample_op.register_fake
def _(*tensors: Tensor) -> Tensor:
    return torch.empty(tensors[-2].shape, dtype=torch.int64, device=tensors[-2].device)
