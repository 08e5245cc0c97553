"""Kernel 3: what a rejected draft is replaced by, a draw from norm((p - q)+).

One program per slot; those with nothing to do leave at once, so that only the rejected slots read their logits, and of
q only the slot that is taken away. Where p = q to the last bit nothing is left, and p itself is drawn from: that can
only happen by rounding.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, warps
from mmspec.kernels.fused_sampler import CHUNK, WHOLE
from mmspec.kernels.inverse_cdf import GROUP, aim, draw_reference, mass, seek
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities


def resample(p: SoftmaxStats, q: SoftmaxStats, todo: Tensor, u: Tensor) -> Tensor:
    """Draws int64 [B, m] from norm((p - q)+) of the slots to do; -1 elsewhere, and where p is not a distribution.

    Args:
        p: The distributions of m slots.
        q: The distributions of m slots.
        todo: bool [B, m].
        u: float32 [B, m] in [0, 1).
    """
    return residual(*p.source(), *q.source(), todo, u)


def residual_reference(p: SoftmaxStats, q: SoftmaxStats, todo: Tensor, u: Tensor) -> Tensor:
    """What `resample` gives, in torch and float64."""
    stage_or_probs, taken = p.dense(torch.float64), q.dense(torch.float64)
    left = (stage_or_probs - taken.nan_to_num()).clamp(min=0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, stage_or_probs)
    return torch.where(todo, draw_reference(left, u), -1)


@triton.jit
def _residual(
    cond, uncond, allowed, floats, ints, q_cond, q_uncond, q_allowed, q_floats, q_ints, todo, us, tokens,
    vocab, stats, stride_row, stride_slot, stride_column, q_stats, q_stride_row, q_stride_slot, q_stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
    WHOLE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, stats, vocab, stride_row, stride_slot, stride_column)
    taken = (
        q_cond, q_uncond, q_allowed, q_floats, q_ints, q_stats, vocab, q_stride_row, q_stride_slot, q_stride_column
    )  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    token = tl.full((), -1, tl.int32)
    if tl.load(todo + slot) != 0:
        lanes = tl.arange(0, BLOCK)
        p = probabilities(source, slot, lanes, GUIDED, MASKED, UNIT)
        q = probabilities(taken, slot, lanes, Q_GUIDED, Q_MASKED, Q_UNIT)
        held = tl.where(q == q, tl.maximum(p - q, 0.0), p)
        kept = p
        # The second time round, where nothing was left, p is drawn from.
        stage_or_probs = 0
        while stage_or_probs < 2:
            total = tl.zeros((), tl.float64)
            for start in range(0, vocab, BLOCK):
                left = held
                if not WHOLE:
                    p = probabilities(source, slot, start + lanes, GUIDED, MASKED, UNIT)
                    q = probabilities(taken, slot, start + lanes, Q_GUIDED, Q_MASKED, Q_UNIT)
                    left = tl.where((q == q) & (stage_or_probs == 0), tl.maximum(p - q, 0.0), p)
                total += mass(left, BLOCK, GROUP)
            if total > 0:
                below = tl.zeros((), tl.float64)
                for start in range(0, vocab, BLOCK):
                    left = held
                    if not WHOLE:
                        p = probabilities(source, slot, start + lanes, GUIDED, MASKED, UNIT)
                        q = probabilities(taken, slot, start + lanes, Q_GUIDED, Q_MASKED, Q_UNIT)
                        left = tl.where((q == q) & (stage_or_probs == 0), tl.maximum(p - q, 0.0), p)
                    found = seek(left, aim(tl.load(us + slot), total) - below, BLOCK, GROUP)
                    token = tl.where((token < 0) & (found < BLOCK), start + found, token)
                    below += mass(left, BLOCK, GROUP)
                stage_or_probs = 2
            stage_or_probs += 1
            held = kept
    tl.store(tokens + slot, token.to(tl.int64))


@torch.library.custom_op("mmspec::residual", mutates_args=())
def residual(
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
    todo: Tensor,
    u: Tensor,
) -> Tensor:
    """`resample`, from and to plain tensors; the first five are p, the next five q."""
    p, q = (cond, uncond, allowed, floats, ints), (q_cond, q_uncond, q_allowed, q_floats, q_ints)
    if chosen(cond) == "torch":
        return residual_reference(SoftmaxStats(*p), SoftmaxStats(*q), todo, u)
    vocab = cond.shape[-1]
    tokens = torch.empty(todo.shape, dtype=torch.int64, device=todo.device)
    whole = vocab <= WHOLE
    block = max(GROUP, triton.next_power_of_2(vocab)) if whole else CHUNK
    with launchable(cond):
        _residual[(todo.numel(),)](
            *p, *q, todo.contiguous(), u.contiguous(), tokens,
            vocab, cond.shape[1], *cond.stride(), q_cond.shape[1], *q_cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            Q_GUIDED=q_uncond is not None, Q_MASKED=q_allowed is not None, Q_UNIT=q_cond.stride(2) == 1,
            WHOLE=whole, BLOCK=block, GROUP=GROUP, num_warps=warps(block),
        )  # fmt: skip
    return tokens


@residual.register_fake
def _(*tensors: Tensor) -> Tensor:
    return torch.empty(tensors[-2].shape, dtype=torch.int64, device=tensors[-2].device)
