"""Kernels 6 and 7: the tokens of the rejected part of a window, for the next one; see `mmspec.sampling.ops.TorchOps`.

The maximal coupling keeps a draft with probability min(1, p / q) and samples the others from the residual. The Gumbel
coupling takes the largest of log p plus noise that is fixed per position, which the kernel makes itself. One program
per slot; in the maximal coupling programs of slots that are committed exit at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.forced_cells import ForcedTable, forced_cell, forced_cells_reference, forced_strides
from mmspec.kernels.inverse_cdf import GROUP
from mmspec.kernels.philox import gumbel_reference, gumbels
from mmspec.kernels.residual import resample_reference, residual_sample, tiles
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel


def couple_maximally(
    p: SoftmaxStats,
    q: SoftmaxStats,
    drafts: Tensor,
    tokens: Tensor,
    sampled: Tensor,
    accepted: Tensor,
    accept_u: Tensor,
    resample_u: Tensor,
) -> Tensor:
    """The tokens of all slots: after the accepted drafts and the next token, those of the maximal coupling.

    Args:
        p: The target distributions of m + 1 slots.
        q: The draft distributions of m slots.
        drafts: int64 [B, m], of any stride between rows.
        tokens: int64 [B, m + 1], of which each row keeps `accepted + 1`.
        sampled: int64 [B, m + 1], a sample of each slot of p; the last slot has no draft and takes it.
        accepted: int64 [B].
        accept_u: float32 [B, m + 1] in [0, 1).
        resample_u: float32 [B, m + 1] in [0, 1).

    Returns:
        int64 [B, m + 1]; -1 where a slot that needs a sample has no distribution.
    """
    return couple_maximally_op(*p.source(), *q.source(), drafts, tokens, sampled, accepted, accept_u, resample_u)


def couple_maximally_reference(
    p: SoftmaxStats,
    q: SoftmaxStats,
    drafts: Tensor,
    tokens: Tensor,
    sampled: Tensor,
    accepted: Tensor,
    accept_u: Tensor,
    resample_u: Tensor,
) -> Tensor:
    """`couple_maximally` in torch and float64."""
    m = drafts.shape[1]
    before, index = p[:, :m], drafts[..., None]
    ratio = before.dense(torch.float64).gather(-1, index) / q.dense(torch.float64).gather(-1, index)
    again = resample_reference(before, q, torch.ones_like(drafts, dtype=torch.bool), resample_u[:, :m])
    coupled = torch.where(accept_u[:, :m].double() < ratio[..., 0], drafts, again)
    later = torch.arange(m + 1, device=drafts.device) > accepted[:, None]
    return torch.where(later, torch.cat([coupled, sampled[:, m:]], dim=1), tokens)


@kernel
def _couple_maximally(
    cond, uncond, allowed, floats, ints, q_cond, q_uncond, q_allowed, q_floats, q_ints,
    drafts, tokens, sampled, accepted, us, resample_us, out, m, vocab, drafts_row,
    slots, stride_row, stride_slot, stride_column, q_slots, q_stride_row, q_stride_slot, q_stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    q_source = (
        q_cond, q_uncond, q_allowed, q_floats, q_ints, q_slots, vocab, q_stride_row, q_stride_slot, q_stride_column
    )  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    row, i = slot // (m + 1), slot % (m + 1)
    token = tl.load(tokens + slot)
    if i > tl.load(accepted + row):
        token = tl.load(sampled + slot)
        if i < m:
            x = tl.load(drafts + row * drafts_row + i)
            one = x + tl.zeros((1,), tl.int64)
            q_slot = row * m + i
            p_x = tl.sum(probabilities(source, slot, one, GUIDED, MASKED, UNIT), 0)
            q_x = tl.sum(probabilities(q_source, q_slot, one, Q_GUIDED, Q_MASKED, Q_UNIT), 0)
            token = x
            if (tl.load(us + slot) < tl.div_rn(p_x, q_x)) == 0:  # also where the ratio is NaN
                token = residual_sample(
                    source, slot, q_source, q_slot, tl.load(resample_us + slot),
                    GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT, CHUNKS, BLOCK, GROUP,
                ).to(tl.int64)  # fmt: skip
    tl.store(out + slot, token)


@operator("mmspec::couple_maximally", mutates_args=())
def couple_maximally_op(
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
    tokens: Tensor,
    sampled: Tensor,
    accepted: Tensor,
    accept_u: Tensor,
    resample_u: Tensor,
) -> Tensor:
    """`couple_maximally` with plain tensors; the first five are p, the next five are q."""
    p, q = (cond, uncond, allowed, floats, ints), (q_cond, q_uncond, q_allowed, q_floats, q_ints)
    numbers = (tokens, sampled, accepted, accept_u, resample_u)
    if chosen(cond) == "torch":
        return couple_maximally_reference(SoftmaxStats(*p), SoftmaxStats(*q), drafts, *numbers)
    vocab, out = cond.shape[-1], tokens.new_empty(tokens.shape)
    block, chunks, many = tiles(vocab)
    with launchable(cond):
        _couple_maximally[(tokens.numel(),)](
            *p, *q, drafts, *(t.contiguous() for t in numbers), out, drafts.shape[1], vocab, drafts.stride(0),
            cond.shape[1], *cond.stride(), q_cond.shape[1], *q_cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            Q_GUIDED=q_uncond is not None, Q_MASKED=q_allowed is not None, Q_UNIT=q_cond.stride(2) == 1,
            CHUNKS=chunks, BLOCK=block, GROUP=GROUP, num_warps=many,
        )  # fmt: skip
    return out


@couple_maximally_op.register_fake
def _(*tensors: Tensor) -> Tensor:
    return tensors[11].new_empty(tensors[11].shape)


def couple_by_noise(
    p: SoftmaxStats, seeds: Tensor, positions: Tensor, cells: int = 1, forced: ForcedTable | None = None
) -> Tensor:
    """The token of each slot with the largest log p plus noise, int64 [B, W * cells].

    Args:
        p: The distributions [B, W * cells].
        seeds: int64 [B], of the noise, which is that of `mmspec.sampling.rng.CounterRNG.gumbel`.
        positions: int64 [B, W].
        cells: Tokens of a position, which share its noise: token v of cell k takes number k * V + v.
        forced: The forced cells; None if all are free.
    """
    return couple_by_noise_op(*p.source(), seeds, positions, cells, forced)


@kernel
def _couple_by_noise(
    cond, uncond, allowed, floats, ints, seeds, positions, forced, out, width, cells, vocab, forced_row, forced_last,
    slots, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, FORCED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    slot = tl.program_id(0).to(tl.int64)
    at, cell = slot // cells, slot % cells
    row = at // width
    seed, position = tl.load(seeds + row), tl.load(positions + at)
    first = (cell * vocab).to(tl.int32)
    lanes = tl.arange(0, BLOCK)
    token, most = tl.full((), -1, tl.int32), float("-inf")
    for start in range(0, vocab, BLOCK):
        p = probabilities(source, slot, start + lanes, GUIDED, MASKED, UNIT)
        noise = gumbels(seed, position, first + start + lanes)
        score = tl.where(p > 0, tl.log(tl.where(p > 0, p, 1.0)) + noise, float("-inf"))
        top = tl.max(score, 0)
        token = tl.where(top > most, start + tl.argmax(score, 0), token)
        most = tl.maximum(most, top)
    must = forced_cell((forced, forced_row, forced_last), row, position, cells, cell, FORCED)
    tl.store(out + slot, tl.where(must >= 0, must, token.to(tl.int64)))


@operator("mmspec::couple_by_noise", mutates_args=())
def couple_by_noise_op(
    cond: Tensor,
    uncond: Tensor | None,
    allowed: Tensor | None,
    floats: Tensor,
    ints: Tensor,
    seeds: Tensor,
    positions: Tensor,
    cells: int,
    forced: Tensor | None,
) -> Tensor:
    """`couple_by_noise` with plain tensors."""
    vocab, (batch, width) = cond.shape[-1], positions.shape
    if chosen(cond) == "torch":
        p = SoftmaxStats(cond, uncond, allowed, floats, ints).dense(torch.float64)
        noise = gumbel_reference(seeds[:, None], positions, cells * vocab).view(batch, width * cells, vocab)
        tokens, must = (p.log().float() + noise).argmax(-1), forced_cells_reference(forced, positions, cells)
        return torch.where(must.flatten(1) >= 0, must.flatten(1), tokens)
    out = positions.new_empty((batch, width * cells))
    block, _, many = tiles(vocab)
    with launchable(cond):
        _couple_by_noise[(out.numel(),)](
            cond, uncond, allowed, floats, ints, seeds, positions.contiguous(), forced, out, width, cells, vocab,
            *forced_strides(forced), cond.shape[1], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            FORCED=forced is not None, BLOCK=block, num_warps=many,
        )  # fmt: skip
    return out


@couple_by_noise_op.register_fake
def _(*given: Any) -> Tensor:
    positions, cells = given[6:8]
    return positions.new_empty((len(positions), positions.shape[1] * cells))
