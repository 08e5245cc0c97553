"""Kernel 2: the verification of a window: acceptance test, number of accepted drafts, and the token after them.

One program per sequence goes along its window and stops at the first rejected draft, so that only tested slots compute
the probabilities of the other tokens that a rule needs. It then samples that slot from the residual, and writes the
window as it is committed, and what the host has to know as one row. The rules are those of `mmspec.rules` under the
same names:

    exact       p(x) / q(x)
    beta        p(x) / q(x) + a
    ensemble    (1 - a) p(x) / q(x) + a
    omega       max(a exp(-b i), 1) p(x) / q(x)                                       at slot i
    lantern     (p(x) + the longest run of nearest tokens within a) / q(x)
    lantern++   (p(x) + the longest run of nearest tokens within (a - 1) p(x)) / q(x)
    gsd         sum of p over x's group / sum of q over it
    typical     1 if p(x) >= min(a, b exp(-H(p))) > 0, else exact
    top-m       1 if x is among the `group` most likely tokens of p, else exact
    pcg         mean of min(1, sum of p / sum of q) over the groups of similar tokens that x is in
    fallback    1 if the largest q exceeds a and p(x) >= b, else exact
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.acceptance import (
    coarse,
    coarse_reference,
    fallback,
    fallback_reference,
    top_m,
    top_m_reference,
    typical,
    typical_reference,
)
from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.inverse_cdf import GROUP
from mmspec.kernels.residual import resample_reference, residual_sample, tiles
from mmspec.kernels.rule import KernelRule
from mmspec.kernels.softmax_stats import TOTAL, SoftmaxStats, logits, probabilities
from mmspec.kernels.specialization import kernel

EXACT, BETA, ENSEMBLE, OMEGA, LANTERN, LANTERN_PLUS, GSD, TYPICAL, TOP_M, PCG, FALLBACK = range(11)
CODES = {
    "exact": EXACT,
    "beta": BETA,
    "ensemble": ENSEMBLE,
    "omega": OMEGA,
    "lantern": LANTERN,
    "lantern++": LANTERN_PLUS,
    "gsd": GSD,
    "typical": TYPICAL,
    "top-m": TOP_M,
    "pcg": PCG,
    "fallback": FALLBACK,
}
_REFERENCES = {
    "typical": typical_reference,
    "top-m": top_m_reference,
    "pcg": coarse_reference,
    "fallback": fallback_reference,
}
BROKEN_DRAFT = 4  # see `Verified.found`
_EXACT_RULE = KernelRule()


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
    rule: KernelRule = _EXACT_RULE,
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
        rule: The acceptance rule.
    """
    return Verified(*verify_window_op(
        *p.source(), *q.source(), drafts, chance, sampled, accept_u, resample_u,
        CODES[rule.name], rule.a, rule.b, rule.group, rule.near, rule.vectors, rule.known,
    ))  # fmt: skip


def acceptance_reference(p: Tensor, q: Tensor, x: Tensor, rule: KernelRule) -> Tensor:
    """The acceptance probabilities [B, m] of drafts int64 [B, m] under distributions [B, m, V], slot by slot."""
    out = torch.zeros(x.shape, dtype=p.dtype, device=p.device)
    for row in range(x.shape[0]):
        for slot in range(x.shape[1]):
            p_slot, q_slot, draft = p[row, slot], q[row, slot], int(x[row, slot])
            exact = p_slot[draft] / q_slot[draft]
            if rule.name == "gsd":
                out[row, slot] = _group_reference(p_slot, q_slot, draft, rule)
            elif rule.name in _REFERENCES:
                out[row, slot] = _REFERENCES[rule.name](p_slot, q_slot, draft, rule)
            elif rule.name in ("lantern", "lantern++"):
                assert rule.near is not None
                budget = rule.a if rule.name == "lantern" else max(rule.a - 1, 0.0) * float(p_slot[draft])
                lent = 0.0
                for other in rule.near[draft].tolist():
                    more = lent + (float(p_slot[other]) if other != draft else 0.0)
                    if more > budget:
                        break
                    lent = more
                out[row, slot] = (p_slot[draft] + lent) / q_slot[draft]
            elif rule.name == "beta":
                out[row, slot] = exact + rule.a
            elif rule.name == "ensemble":
                out[row, slot] = (1 - rule.a) * exact + rule.a
            elif rule.name == "omega":
                out[row, slot] = max(rule.a * float(torch.tensor(-rule.b * slot).exp()), 1.0) * exact
            else:
                out[row, slot] = exact
    return out


def _group_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> Tensor:
    order = p.argsort(descending=True, stable=True).tolist()
    rank = order.index(x)
    first = rank - rule.group // 2
    group = [x]
    for other in order[max(first, 0) : first + rule.group + 1]:
        alike = abs(p[other] - p[x]) < rule.a
        if rule.b and rule.vectors is not None and rule.known is not None:
            gap = (rule.vectors[other] - rule.vectors[x]).square().sum()
            alike = alike and gap < rule.b and rule.known[other] and rule.known[x]
        if alike and other != x:
            group.append(other)
    return p[group].sum() / q[group].sum()


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
    exact = acceptance_reference(p_probs, q_probs, drafts, _EXACT_RULE)
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


@triton.jit
def _total_order(z, columns):
    """Integers that order tokens by z, and tokens of equal z by id, the smaller id above."""
    bits = tl.where(z == 0, 0.0, z).to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (key << 32) + (0xFFFFFFFF - columns.to(tl.int64))


@triton.jit
def _kept_order(source, slot, columns, GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr):
    """Integers that order a slot's tokens by probability; tokens that are cut off count as equally likely."""
    _, _, _, floats, ints, _, _, _, _, _ = source
    scale, temperature = tl.load(floats + slot * 5), tl.load(floats + slot * 5 + 1)
    floor = tl.load(floats + slot * 5 + 2)
    line, kind = tl.load(ints + slot * 5), tl.load(ints + slot * 5 + 1)
    last, point = tl.load(ints + slot * 5 + 2), tl.load(ints + slot * 5 + 3)
    z = logits(source, line, kind, scale, temperature, columns, GUIDED, MASKED, UNIT)
    kept = (z > floor) | ((z == floor) & (columns <= last))
    z = tl.where(point < 0, tl.where(kept, z, float("-inf")), tl.where(columns == point, 0.0, float("-inf")))
    return _total_order(z, columns)


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
        chance = exact
        if RULE == 1:
            chance = exact + a
        elif RULE == 2:
            chance = (1 - a) * exact + a
        elif RULE == 3:
            chance = tl.maximum(a * tl.exp(-b * i), 1.0) * exact
        elif RULE == 4 or RULE == 5:
            ranks = tl.arange(0, NEIGHBORS)
            inside = ranks < neighbors
            others = tl.load(near + draft * neighbors + ranks, mask=inside, other=-1)
            p = probabilities(source, slot, others, GUIDED, MASKED, UNIT)
            p = tl.where(inside & (others != draft), p, 0.0)
            budget = a
            if RULE == 5:
                budget = tl.maximum(a - 1, 0.0) * p_x
            lent = tl.cumsum(p, 0)
            chance = (p_x + tl.max(tl.where(lent <= budget, lent, 0.0), 0)) / q_x
        elif RULE == 6:
            lanes = tl.arange(0, BLOCK)
            dims = tl.arange(0, DIM)
            p_sum, q_sum = p_x, q_x
            for direction in range(0, 2):  # up in rank, then down
                at = tl.max(_kept_order(source, slot, x, GUIDED, MASKED, UNIT), 0)
                steps = tl.where(direction == 0, group // 2, group - group // 2)
                step = 0
                while step < steps:
                    # The next token in rank.
                    best = tl.where(direction == 0, tl.full((), 0x7FFFFFFFFFFFFFFF, tl.int64), -0x7FFFFFFFFFFFFFFF)
                    for start in range(0, vocab, BLOCK):
                        columns = start + lanes
                        order = _kept_order(source, slot, columns, GUIDED, MASKED, UNIT)
                        inside = columns < vocab
                        up = tl.min(tl.where(inside & (order > at), order, 0x7FFFFFFFFFFFFFFF), 0)
                        down = tl.max(tl.where(inside & (order < at), order, -0x7FFFFFFFFFFFFFFF), 0)
                        best = tl.where(direction == 0, tl.minimum(best, up), tl.maximum(best, down))
                    exists = (best != 0x7FFFFFFFFFFFFFFF) & (best != -0x7FFFFFFFFFFFFFFF)
                    other = tl.where(exists, 0xFFFFFFFF - (best & 0xFFFFFFFF), 0) + one
                    p_o = tl.sum(probabilities(source, slot, other, GUIDED, MASKED, UNIT), 0)
                    q_o = tl.sum(probabilities(q_source, row * m + i, other, Q_GUIDED, Q_MASKED, Q_UNIT), 0)
                    alike = exists & (tl.abs(p_o - p_x) < a)
                    if NEAR:
                        y = tl.max(other, 0)
                        gap = tl.load(vectors + y * dimensions + dims, mask=dims < dimensions, other=0.0)
                        gap -= tl.load(vectors + draft * dimensions + dims, mask=dims < dimensions, other=0.0)
                        both = (tl.load(known + y) != 0) & (tl.load(known + draft) != 0)
                        alike = alike & (tl.sum(gap * gap, 0) < b) & both
                    p_sum += tl.where(alike, p_o, 0.0)
                    q_sum += tl.where(alike, q_o, 0.0)
                    at = tl.where(exists, best, at)
                    step = tl.where(exists, step + 1, steps)
            chance = p_sum / q_sum
        elif RULE == 7:
            chance = typical(source, slot, p_x, exact, a, b, GUIDED, MASKED, UNIT, BLOCK)
        elif RULE == 8:
            chance = top_m(source, slot, x, exact, group, GUIDED, MASKED, UNIT, BLOCK)
        elif RULE == 9:
            chance = coarse(
                source, slot, q_source, row * m + i, draft, exact, near, vectors, neighbors,
                GUIDED, MASKED, UNIT, Q_GUIDED, Q_MASKED, Q_UNIT, NEIGHBORS,
            )  # fmt: skip
        elif RULE == 10:
            chance = fallback(q_source, row * m + i, p_x, exact, a, b, Q_GUIDED, Q_MASKED, Q_UNIT, BLOCK)
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
