"""Kernel 2: the verification of a window: acceptance test, number of accepted drafts, and the token after them.

One program per sequence goes along its window and stops at the first rejected draft, so that only tested slots compute
the probabilities of the other tokens that a rule needs. It then samples that slot from the residual, and writes the
window as it is committed, and what the host has to know as one row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.acceptance import CODES, acceptance, acceptance_reference, slot_order, slot_probs
from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.inverse_cdf import GROUP
from mmspec.kernels.residual import resample_reference, residual_sample, tiles
from mmspec.kernels.rule import EXACT_RULE, KernelRule
from mmspec.kernels.softmax_stats import TOTAL, SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

BROKEN_DRAFT = 4  # see `Verified.found`


class Verified(NamedTuple):
    """The output of `verify_window`.

    Attributes:
        tokens: int64 [B, m + 1]: the drafts, with the resampled or bonus token in its slot; 0 in the free slot if it is
            not that one.
        accepted: int64 [B], the number of accepted drafts.
        found: int32 [B, 3 + 2 m], what the host has to know: `accepted`; 1 if the token after them has no distribution,
            plus 2 if any slot of p has none, plus 4 if any of q; `tokens`; and the bits of m float32, the distance of
            the acceptance probability of each tested slot from the exact one, 0 for slots that were not tested.
    """

    tokens: Tensor
    accepted: Tensor
    found: Tensor

    def excess(self) -> Tensor:
        """The last m numbers of `found`, float32 [B, m]."""
        return self.found[:, 2 + self.tokens.shape[1] :].view(torch.float32)


def verify_window(
    p: SoftmaxStats,
    q: SoftmaxStats,
    drafts: Tensor,
    chance: Tensor,
    sampled: Tensor,
    accept_u: Tensor,
    resample_u: Tensor,
    rule: KernelRule = EXACT_RULE,
) -> Verified:
    """Tests the drafts of each row from left to right, and resamples the first rejected one.

    Args:
        p: The target distributions of m + 1 slots.
        q: The draft distributions of m slots.
        drafts: int64 [B, m], of any stride between rows.
        chance: float32 [B, m + 1], p of the drafts, as computed by `mmspec.kernels.fused_sampler`.
        sampled: int64 [B, m + 1], a sample of each slot; the last one is the bonus token.
        accept_u: float32 [B, m + 1] in [0, 1), the random numbers of the tests.
        resample_u: float32 [B, m + 1] in [0, 1), those of the resampled tokens.
    """
    return Verified(*verify_window_op(
        *p.source(), *q.source(), drafts, chance, sampled, accept_u, resample_u,
        CODES[rule.name], rule.a, rule.b, rule.group, rule.near, rule.vectors, rule.known,
    ))  # fmt: skip


def verify_window_reference(
    p: SoftmaxStats,
    q: SoftmaxStats,
    drafts: Tensor,
    sampled: Tensor,
    accept_u: Tensor,
    resample_u: Tensor,
    rule: KernelRule,
) -> Verified:
    """`verify_window` in torch and float64."""
    m = drafts.shape[1]
    before = p[:, :m]
    p_probs, q_probs = before.dense(torch.float64), q.dense(torch.float64)
    chance = acceptance_reference(p_probs, q_probs, drafts, rule)
    exact = acceptance_reference(p_probs, q_probs, drafts, EXACT_RULE)
    first = (accept_u[:, :m].double() < chance).long().cumprod(-1).sum(-1)
    slots = torch.arange(m + 1, device=drafts.device)
    gap = torch.where(slots[:m] <= first[:, None], (chance.clamp(max=1.0) - exact.clamp(max=1.0)).abs(), 0.0).float()
    here = slots == first[:, None]
    resampled = torch.cat([resample_reference(before, q, here[:, :m], resample_u[:, :m]), sampled[:, m:]], dim=1)
    tokens = torch.where(here, resampled, torch.cat([drafts, torch.zeros_like(drafts[:, :1])], dim=1))
    broken = [one.floats[..., TOTAL].isnan().any(1).int() for one in (p, q)]
    invalid = (here & (tokens < 0)).any(1).int() + 2 * broken[0] + BROKEN_DRAFT * broken[1]
    found = torch.cat([first[:, None].int(), invalid[:, None], tokens.int(), gap.view(torch.int32)], dim=1)
    return Verified(tokens, first, found)


@kernel
def _verify_window(
    cond, uncond, allowed, floats, ints, q_cond, q_uncond, q_allowed, q_floats, q_ints, drafts, chances, sampled, us,
    resample_us, near, vectors, known, tokens, accepted, found, a, b, m, vocab, group, neighbors, dimensions,
    drafts_row, slots, stride_row, stride_slot, stride_column, q_slots, q_stride_row, q_stride_slot, q_stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
    RULE: tl.constexpr, NEAR: tl.constexpr, NEIGHBORS: tl.constexpr, DIM: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    q_source = (
        q_cond, q_uncond, q_allowed, q_floats, q_ints, q_slots, vocab, q_stride_row, q_stride_slot, q_stride_column
    )  # fmt: skip
    P_FLAGS: tl.constexpr = (GUIDED, MASKED, UNIT)
    Q_FLAGS: tl.constexpr = (Q_GUIDED, Q_MASKED, Q_UNIT)
    rule = (near, vectors, known, a, b, group, neighbors, dimensions)
    row = tl.program_id(0).to(tl.int64)
    one = tl.zeros((1,), tl.int64)
    report = found + row * (3 + 2 * m)
    i, going = 0, 1
    while (i < m) & (going != 0):
        slot = row * (m + 1) + i
        draft = tl.load(drafts + row * drafts_row + i)
        x = draft + one
        p_x = tl.load(chances + slot)
        q_x = tl.sum(probabilities(q_source, row * m + i, x, Q_GUIDED, Q_MASKED, Q_UNIT), 0)
        exact = tl.div_rn(p_x, q_x)  # a plain division of a number by itself may give less than 1
        chance = acceptance(
            (source, slot), (q_source, row * m + i), draft, exact, p_x, q_x, i, rule, vocab,
            slot_probs, slot_probs, slot_order, P_FLAGS, Q_FLAGS, RULE, NEAR, NEIGHBORS, DIM, BLOCK,
        )  # fmt: skip
        gap = tl.abs(tl.minimum(chance, 1.0) - tl.minimum(exact, 1.0))
        tl.store(report + 3 + m + i, gap.to(tl.int32, bitcast=True))
        going = (tl.load(us + slot) < chance).to(tl.int32)
        i += going
    # The token after the accepted drafts.
    if i < m:
        token = residual_sample(
            source, row * (m + 1) + i, q_source, row * m + i, tl.load(resample_us + row * (m + 1) + i),
            GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT, CHUNKS, BLOCK, GROUP,
        ).to(tl.int64)  # fmt: skip
    else:
        token = tl.load(sampled + row * (m + 1) + m)
    tl.store(accepted + row, i)
    tl.store(report, i)
    lanes = tl.arange(0, GROUP)
    broken, q_broken = tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    for start in range(0, m + 1, GROUP):
        slot = start + lanes
        inside = slot < m + 1
        x = tl.load(drafts + row * drafts_row + slot, mask=slot < m, other=0)
        x = tl.where(slot == i, token, x)
        tl.store(tokens + row * (m + 1) + slot, x, mask=inside)
        tl.store(report + 2 + slot, x.to(tl.int32), mask=inside)
        tl.store(report + 3 + m + slot, 0, mask=(slot > i) & (slot < m))
        total = tl.load(floats + (row * (m + 1) + slot) * 5 + 4, mask=inside, other=1.0)
        broken += tl.sum((total != total).to(tl.int32), 0)
        total = tl.load(q_floats + (row * m + slot) * 5 + 4, mask=slot < m, other=1.0)
        q_broken += tl.sum((total != total).to(tl.int32), 0)
    tl.store(report + 1, (token < 0).to(tl.int32) + 2 * (broken > 0).to(tl.int32) + 4 * (q_broken > 0).to(tl.int32))


@operator("mmspec::verify_window", mutates_args=())
def verify_window_op(
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
    chance: Tensor,
    sampled: Tensor,
    accept_u: Tensor,
    resample_u: Tensor,
    rule: int,
    a: float,
    b: float,
    group: int,
    near: Tensor | None,
    vectors: Tensor | None,
    known: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`verify_window` with plain tensors; the first five are p, the next five are q."""
    p, q = (cond, uncond, allowed, floats, ints), (q_cond, q_uncond, q_allowed, q_floats, q_ints)
    if chosen(cond) == "torch":
        names = {code: name for name, code in CODES.items()}
        kernel_rule = KernelRule(names[rule], a, b, group, near, vectors, known)
        return verify_window_reference(
            SoftmaxStats(*p), SoftmaxStats(*q), drafts, sampled, accept_u, resample_u, kernel_rule
        )
    batch, m = drafts.shape
    vocab = cond.shape[-1]
    tokens, accepted, found = _outputs(drafts)
    numbers = [t.contiguous() for t in (chance, sampled, accept_u, resample_u)]
    neighbors = 0 if near is None else near.shape[1]
    dimensions = 0 if vectors is None else vectors.shape[1]
    block, chunks, many = tiles(vocab)
    with launchable(cond):
        _verify_window[(batch,)](
            *p, *q, drafts, *numbers, near, vectors, known, tokens, accepted, found,
            a, b, m, vocab, group, neighbors, dimensions, drafts.stride(0),
            cond.shape[1], *cond.stride(), q_cond.shape[1], *q_cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            Q_GUIDED=q_uncond is not None, Q_MASKED=q_allowed is not None, Q_UNIT=q_cond.stride(2) == 1,
            RULE=rule, NEAR=b > 0 and vectors is not None, NEIGHBORS=triton.next_power_of_2(max(neighbors, 1)),
            DIM=triton.next_power_of_2(max(dimensions, 1)), CHUNKS=chunks, BLOCK=block, GROUP=GROUP,
            num_warps=many,
        )  # fmt: skip
    return tokens, accepted, found


@verify_window_op.register_fake
def _(cond: Tensor, *rest: Tensor | int | float | None) -> tuple[Tensor, Tensor, Tensor]:
    drafts = rest[9]
    assert isinstance(drafts, Tensor)
    return _outputs(drafts)


def _outputs(drafts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, m = drafts.shape
    found = drafts.new_empty((batch, 3 + 2 * m), dtype=torch.int32)
    return drafts.new_empty((batch, m + 1)), drafts.new_empty((batch,)), found
