"""Kernel 2: from acceptance bits to how many drafts each row commits.

One program per sequence walks down its window and stops at the first draft that fails, so that only tested slots pay
for what a rule wants to know about other tokens. The rules are those of `mmspec.rules` under the same names:

    exact       p(x) / q(x)
    beta        p(x) / q(x) + a
    ensemble    (1 - a) p(x) / q(x) + a
    omega       max(a exp(-b i), 1) p(x) / q(x)                                       at slot i
    lantern     (p(x) + the longest run of nearest tokens within a) / q(x)
    lantern++   (p(x) + the longest run of nearest tokens within (a - 1) p(x)) / q(x)
    gsd         sum of p over x's group / sum of q over it
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, warps
from mmspec.kernels.softmax_stats import SoftmaxStats, logits, probabilities

EXACT, BETA, ENSEMBLE, OMEGA, LANTERN, LANTERN_PLUS, GSD = range(7)
CODES = {
    "exact": EXACT,
    "beta": BETA,
    "ensemble": ENSEMBLE,
    "omega": OMEGA,
    "lantern": LANTERN,
    "lantern++": LANTERN_PLUS,
    "gsd": GSD,
}
CHUNK = 8192


@dataclass(frozen=True)
class Test:
    """How drafts are tested.

    Attributes:
        rule: A name of the table above.
        a: Its first number, as in the table; for gsd it bounds how far members differ from x in probability.
        b: Its second number; for gsd it bounds how far they differ in the codebook, squared (0: any distance).
        group: For gsd, the tokens next to x in rank that are asked.
        near: For lantern, int32 [V, k], the nearest tokens of each token, itself where there are no more.
        vectors: For gsd with a distance, float32 [V, D], the codebook.
        known: For gsd with a distance, bool [V], which tokens the codebook has.
    """

    __test__ = False  # no test of pytest's

    rule: str = "exact"
    a: float = 0.0
    b: float = 0.0
    group: int = 0
    near: Tensor | None = None
    vectors: Tensor | None = None
    known: Tensor | None = None


def committed(
    p: SoftmaxStats, q: SoftmaxStats, drafts: Tensor, chance: Tensor, u: Tensor, test: Test = Test()
) -> tuple[Tensor, Tensor]:
    """How many drafts each row accepts before the first that fails.

    Args:
        p: The distributions of m slots.
        q: The distributions of m slots.
        drafts: int64 [B, m].
        chance: float32 [B, m], p of the drafts, as `mmspec.kernels.fused_sampler` found it.
        u: float32 [B, m] in [0, 1).
        test: The rule.

    Returns:
        int64 [B]; and float32 [B, m], how far the acceptance probability of each tested slot lies from the exact one, 0
            for slots that were not tested.
    """
    return accept(
        *p.source(), *q.source(), drafts, chance, u,
        CODES[test.rule], test.a, test.b, test.group, test.near, test.vectors, test.known,
    )  # fmt: skip


def chances_reference(p: Tensor, q: Tensor, x: Tensor, test: Test) -> Tensor:
    """The acceptance probabilities [B, m] of drafts int64 [B, m] under distributions [B, m, V], slot by slot."""
    out = torch.zeros(x.shape, dtype=p.dtype, device=p.device)
    for row in range(x.shape[0]):
        for slot in range(x.shape[1]):
            probs, own, draft = p[row, slot], q[row, slot], int(x[row, slot])
            exact = probs[draft] / own[draft]
            if test.rule == "gsd":
                out[row, slot] = _group_reference(probs, own, draft, test)
            elif test.rule in ("lantern", "lantern++"):
                assert test.near is not None
                budget = test.a if test.rule == "lantern" else max(test.a - 1, 0.0) * float(probs[draft])
                lent = 0.0
                for other in test.near[draft].tolist():
                    more = lent + (float(probs[other]) if other != draft else 0.0)
                    if more > budget:
                        break
                    lent = more
                out[row, slot] = (probs[draft] + lent) / own[draft]
            elif test.rule == "beta":
                out[row, slot] = exact + test.a
            elif test.rule == "ensemble":
                out[row, slot] = (1 - test.a) * exact + test.a
            elif test.rule == "omega":
                out[row, slot] = max(test.a * float(torch.tensor(-test.b * slot).exp()), 1.0) * exact
            else:
                out[row, slot] = exact
    return out


def _group_reference(p: Tensor, q: Tensor, x: int, test: Test) -> Tensor:
    order = p.argsort(descending=True, stable=True).tolist()
    rank = order.index(x)
    first = rank - test.group // 2
    group = [x]
    for other in order[max(first, 0) : first + test.group + 1]:
        alike = abs(p[other] - p[x]) < test.a
        if test.b and test.vectors is not None and test.known is not None:
            gap = (test.vectors[other] - test.vectors[x]).square().sum()
            alike = alike and gap < test.b and test.known[other] and test.known[x]
        if alike and other != x:
            group.append(other)
    return p[group].sum() / q[group].sum()


def accept_reference(p: SoftmaxStats, q: SoftmaxStats, drafts: Tensor, u: Tensor, test: Test) -> tuple[Tensor, Tensor]:
    """What `committed` gives, in torch and float64."""
    probs, own = p.dense(torch.float64), q.dense(torch.float64)
    chance = chances_reference(probs, own, drafts, test)
    exact = chances_reference(probs, own, drafts, Test())
    first = (u.double() < chance).long().cumprod(-1).sum(-1)
    tested = torch.arange(drafts.shape[1], device=u.device) <= first[:, None]
    gap = (chance.clamp(max=1.0) - exact.clamp(max=1.0)).abs()
    return first, torch.where(tested, gap, 0.0).float()


@triton.jit
def _total_order(z, columns):
    """Whole numbers that order tokens as by z, and those of equal z by their ids, the smaller one above."""
    bits = tl.where(z == 0, 0.0, z).to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (key << 32) + (0xFFFFFFFF - columns.to(tl.int64))


@triton.jit
def _kept_order(source, slot, columns, GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr):
    """The order of a slot's tokens by probability; the ones that are cut off are all alike."""
    _, _, _, floats, ints, _, _, _, _, _ = source
    scale, heat, floor = tl.load(floats + slot * 5), tl.load(floats + slot * 5 + 1), tl.load(floats + slot * 5 + 2)
    line, kind = tl.load(ints + slot * 5), tl.load(ints + slot * 5 + 1)
    last, point = tl.load(ints + slot * 5 + 2), tl.load(ints + slot * 5 + 3)
    z = logits(source, line, kind, scale, heat, columns, GUIDED, MASKED, UNIT)
    kept = (z > floor) | ((z == floor) & (columns <= last))
    z = tl.where(point < 0, tl.where(kept, z, float("-inf")), tl.where(columns == point, 0.0, float("-inf")))
    return _total_order(z, columns)


@triton.jit
def _accept(
    cond, uncond, allowed, floats, ints, q_cond, q_uncond, q_allowed, q_floats, q_ints, drafts, chances, us,
    near, vectors, known, accepted, excess, a, b, m, vocab, group, neighbours, dimensions,
    stats, stride_row, stride_slot, stride_column, q_stats, q_stride_row, q_stride_slot, q_stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr,
    RULE: tl.constexpr, NEAR: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, stats, vocab, stride_row, stride_slot, stride_column)
    taken = (
        q_cond, q_uncond, q_allowed, q_floats, q_ints, q_stats, vocab, q_stride_row, q_stride_slot, q_stride_column
    )  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    one = tl.zeros((1,), tl.int64)
    i, going = 0, 1
    while (i < m) & (going != 0):
        slot = row * m + i
        x = tl.load(drafts + slot) + one
        p_x = tl.load(chances + slot)
        q_x = tl.sum(
            probabilities(taken, slot, x, Q_GUIDED, Q_MASKED, Q_UNIT), 0,
        )  # fmt: skip
        exact = tl.div_rn(p_x, q_x)  # a plain division of a number by itself may fall short of 1
        chance = exact
        if RULE == 1:
            chance = exact + a
        elif RULE == 2:
            chance = (1 - a) * exact + a
        elif RULE == 3:
            chance = tl.maximum(a * tl.exp(-b * i), 1.0) * exact
        elif RULE == 4 or RULE == 5:
            ranks = tl.arange(0, BLOCK)
            inside = ranks < neighbours
            around = tl.load(near + tl.load(drafts + slot) * neighbours + ranks, mask=inside, other=-1)
            p = probabilities(source, slot, around, GUIDED, MASKED, UNIT)
            p = tl.where(inside & (around != tl.load(drafts + slot)), p, 0.0)
            budget = a
            if RULE == 5:
                budget = tl.maximum(a - 1, 0.0) * p_x
            lent = tl.cumsum(p, 0)
            chance = (p_x + tl.max(tl.where(lent <= budget, lent, 0.0), 0)) / q_x
        elif RULE == 6:
            lanes = tl.arange(0, BLOCK)
            dims = tl.arange(0, DIM)
            p_sum, q_sum = p_x, q_x
            for way in range(0, 2):
                at = tl.max(
                    _kept_order(source, slot, x, GUIDED, MASKED, UNIT), 0,
                )  # fmt: skip
                steps = tl.where(way == 0, group // 2, group - group // 2)
                step = 0
                while step < steps:
                    # The next token up in rank, or down.
                    best = tl.where(way == 0, tl.full((), 0x7FFFFFFFFFFFFFFF, tl.int64), -0x7FFFFFFFFFFFFFFF)
                    for start in range(0, vocab, BLOCK):
                        columns = start + lanes
                        order = _kept_order(source, slot, columns, GUIDED, MASKED, UNIT)  # fmt: skip
                        inside = columns < vocab
                        up = tl.min(tl.where(inside & (order > at), order, 0x7FFFFFFFFFFFFFFF), 0)
                        down = tl.max(tl.where(inside & (order < at), order, -0x7FFFFFFFFFFFFFFF), 0)
                        best = tl.where(way == 0, tl.minimum(best, up), tl.maximum(best, down))
                    found = (best != 0x7FFFFFFFFFFFFFFF) & (best != -0x7FFFFFFFFFFFFFFF)
                    other = tl.where(found, 0xFFFFFFFF - (best & 0xFFFFFFFF), 0) + one
                    p_o = tl.sum(
                        probabilities(source, slot, other, GUIDED, MASKED, UNIT), 0,
                    )  # fmt: skip
                    q_o = tl.sum(
                        probabilities(taken, slot, other, Q_GUIDED, Q_MASKED, Q_UNIT), 0,
                    )  # fmt: skip
                    alike = found & (tl.abs(p_o - p_x) < a)
                    if NEAR:
                        y, mine = tl.max(other, 0), tl.load(drafts + slot)
                        gap = tl.load(vectors + y * dimensions + dims, mask=dims < dimensions, other=0.0)
                        gap -= tl.load(vectors + mine * dimensions + dims, mask=dims < dimensions, other=0.0)
                        both = (tl.load(known + y) != 0) & (tl.load(known + mine) != 0)
                        alike = alike & (tl.sum(gap * gap, 0) < b) & both
                    p_sum += tl.where(alike, p_o, 0.0)
                    q_sum += tl.where(alike, q_o, 0.0)
                    at = tl.where(found, best, at)
                    step = tl.where(found, step + 1, steps)
            chance = p_sum / q_sum
        tl.store(excess + slot, tl.abs(tl.minimum(chance, 1.0) - tl.minimum(exact, 1.0)))
        going = (tl.load(us + slot) < chance).to(tl.int32)
        i += going
    tl.store(accepted + row, i)


@torch.library.custom_op("mmspec::accept", mutates_args=())
def accept(
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
    u: Tensor,
    rule: int,
    a: float,
    b: float,
    group: int,
    near: Tensor | None,
    vectors: Tensor | None,
    known: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`committed`, from and to plain tensors; the first five are p, the next five q."""
    p, q = (cond, uncond, allowed, floats, ints), (q_cond, q_uncond, q_allowed, q_floats, q_ints)
    if chosen(cond) == "torch":
        names = {code: name for name, code in CODES.items()}
        test = Test(names[rule], a, b, group, near, vectors, known)
        return accept_reference(SoftmaxStats(*p), SoftmaxStats(*q), drafts, u, test)
    batch, m = drafts.shape
    vocab = cond.shape[-1]
    accepted, excess = _outputs(drafts)
    excess.zero_()
    neighbours = 0 if near is None else near.shape[1]
    dimensions = 0 if vectors is None else vectors.shape[1]
    block = triton.next_power_of_2(neighbours) if neighbours else min(triton.next_power_of_2(vocab), CHUNK)
    with launchable(cond):
        _accept[(batch,)](
            *p, *q, drafts.contiguous(), chance.contiguous(), u.contiguous(), near, vectors, known, accepted, excess,
            a, b, m, vocab, group, neighbours, dimensions,
            cond.shape[1], *cond.stride(), q_cond.shape[1], *q_cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            Q_GUIDED=q_uncond is not None, Q_MASKED=q_allowed is not None, Q_UNIT=q_cond.stride(2) == 1,
            RULE=rule, NEAR=b > 0 and vectors is not None, BLOCK=block,
            DIM=triton.next_power_of_2(max(dimensions, 1)), num_warps=warps(block) if rule >= LANTERN else 1,
        )  # fmt: skip
    return accepted, excess


@accept.register_fake
def _(cond: Tensor, *rest: Tensor | int | float | None) -> tuple[Tensor, Tensor]:
    drafts = rest[9]
    assert isinstance(drafts, Tensor)
    return _outputs(drafts)


def _outputs(drafts: Tensor) -> tuple[Tensor, Tensor]:
    shape = drafts.shape
    return drafts.new_empty(shape[:1]), drafts.new_empty(shape, dtype=torch.float32)
