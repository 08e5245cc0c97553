"""The acceptance probability of one draft under every rule, as a part of the kernels of windows and of trees.

The rules are those of `mmspec.rules` under the same names; x is the draft, tested in slot i of its window:

    exact       p(x) / q(x)
    beta        p(x) / q(x) + a
    ensemble    (1 - a) p(x) / q(x) + a
    omega       max(a exp(-b i), 1) p(x) / q(x)
    lantern     (p(x) + the longest run of nearest tokens within a) / q(x)
    lantern++   (p(x) + the longest run of nearest tokens within (a - 1) p(x)) / q(x)
    gsd         sum of p over x's group / sum of q over it
    typical     1 if p(x) >= min(a, b exp(-H(p))) > 0, else exact
    top-m       1 if x is among the `group` most likely tokens of p, else exact
    pcg         mean of min(1, sum of p / sum of q) over the groups of similar tokens that x is in
    fallback    1 if the largest q exceeds a and p(x) >= b, else exact

The kernels read p and q of a slot by functions P(p, columns, P_FLAGS) and Q(q, columns, Q_FLAGS), whose first argument
is a tuple: in a tree, p is what earlier siblings have left, and is computed anew wherever it is read. A row of the
vocabulary is read in tiles of BLOCK tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.rule import KernelRule
from mmspec.kernels.softmax_stats import logits, probabilities

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


def _typical_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> float:
    """`_typical` in torch, of distributions [V]."""
    threshold = min(rule.a, rule.b * float((-torch.special.entr(p).sum()).exp()))
    return 1.0 if 0 < threshold <= float(p[x]) else float(p[x] / q[x])


def _top_m_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> float:
    """`_top_m` in torch, of distributions [V]."""
    return 1.0 if int((p > p[x]).sum()) < rule.group and p[x] > 0 else float(p[x] / q[x])


def _coarse_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> float:
    """`_coarse` in torch, of distributions [V]."""
    assert rule.near is not None and rule.vectors is not None
    centers = [center for center in rule.near[x].tolist() if center >= 0]
    if len(centers) == 1:
        return float(p[x] / q[x])
    total = 0.0
    for center in centers:
        members = rule.near[center][rule.near[center] >= 0].long()
        share = rule.vectors[members, 0].to(p)
        p_group, q_group = float((p[members] * share).sum()), float((q[members] * share).sum())
        total += min(p_group / q_group, 1.0) if q_group > 0 else 0.0
    return total / len(centers)


def _fallback_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> float:
    """`_fallback` in torch, of distributions [V]."""
    return 1.0 if q.max() > rule.a and p[x] >= rule.b else float(p[x] / q[x])


_REFERENCES = {
    "typical": _typical_reference,
    "top-m": _top_m_reference,
    "pcg": _coarse_reference,
    "fallback": _fallback_reference,
}


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


@triton.jit
def slot_probs(slot, columns, FLAGS: tl.constexpr):
    """The probabilities of the tokens `columns` of a slot (a source and its flat index), of GUIDED, MASKED and UNIT."""
    source, index = slot
    return probabilities(source, index, columns, FLAGS[0], FLAGS[1], FLAGS[2])


@triton.jit
def slot_order(slot, columns, FLAGS: tl.constexpr):
    """The logits of a slot, which order its tokens by probability; tokens that are cut off count as equally likely."""
    source, index = slot
    _, _, _, floats, ints, _, _, _, _, _ = source
    scale, temperature = tl.load(floats + index * 5), tl.load(floats + index * 5 + 1)
    floor = tl.load(floats + index * 5 + 2)
    line, kind = tl.load(ints + index * 5), tl.load(ints + index * 5 + 1)
    last, point = tl.load(ints + index * 5 + 2), tl.load(ints + index * 5 + 3)
    z = logits(source, line, kind, scale, temperature, columns, FLAGS[0], FLAGS[1], FLAGS[2])
    kept = (z > floor) | ((z == floor) & (columns <= last))
    return tl.where(point < 0, tl.where(kept, z, float("-inf")), tl.where(columns == point, 0.0, float("-inf")))


@triton.jit
def acceptance(
    p, q, draft, exact, p_x, q_x, i, rule, vocab,
    P: tl.constexpr, Q: tl.constexpr, ORDER: tl.constexpr, P_FLAGS: tl.constexpr, Q_FLAGS: tl.constexpr,
    RULE: tl.constexpr, NEAR: tl.constexpr, NEIGHBORS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The acceptance probability of the token `draft` in slot i, of which p is `p_x`, q `q_x` and their ratio `exact`.

    ORDER(p, columns, P_FLAGS) orders tokens by float32; of equal ones the smaller id is above. `rule` is (near,
    vectors, known, a, b, group, neighbors, dimensions), the tensors and numbers of a `KernelRule`.
    """
    near, vectors, known, a, b, group, neighbors, dimensions = rule
    one = tl.zeros((1,), tl.int64)
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
        lent = tl.where(inside & (others != draft), P(p, others, P_FLAGS), 0.0)
        budget = a
        if RULE == 5:
            budget = tl.maximum(a - 1, 0.0) * p_x
        lent = tl.cumsum(lent, 0)
        chance = (p_x + tl.max(tl.where(lent <= budget, lent, 0.0), 0)) / q_x
    elif RULE == 6:
        chance = _grouped(
            p, q, draft, p_x, q_x, rule, vocab, P, Q, ORDER, P_FLAGS, Q_FLAGS, NEAR, DIM, BLOCK
        )  # fmt: skip
    elif RULE == 7:
        chance = _typical(p, p_x, exact, a, b, vocab, P, P_FLAGS, BLOCK)
    elif RULE == 8:
        chance = _top_m(p, draft + one, exact, group, vocab, P, P_FLAGS, BLOCK)
    elif RULE == 9:
        chance = _coarse(p, q, draft, exact, near, vectors, neighbors, P, Q, P_FLAGS, Q_FLAGS, NEIGHBORS)
    elif RULE == 10:
        chance = _fallback(q, p_x, exact, a, b, vocab, Q, Q_FLAGS, BLOCK)
    return chance


@triton.jit
def _grouped(
    p, q, draft, p_x, q_x, rule, vocab,
    P: tl.constexpr, Q: tl.constexpr, ORDER: tl.constexpr, P_FLAGS: tl.constexpr, Q_FLAGS: tl.constexpr,
    NEAR: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of p over the sum of q, of x and of those tokens next to it in rank that are alike."""
    near, vectors, known, a, b, group, neighbors, dimensions = rule
    one, lanes, dims = tl.zeros((1,), tl.int64), tl.arange(0, BLOCK), tl.arange(0, DIM)
    p_sum, q_sum = p_x, q_x
    nowhere: tl.constexpr = 0x7FFFFFFF
    first = tl.max(ORDER(p, draft + one, P_FLAGS), 0)
    half = group // 2
    at, at_id = first, tl.zeros((), tl.int32)
    step = 0
    while step < group:  # up in rank, which is down with all signs turned, then down
        sign = tl.where(step < half, -1, 1)
        starts = (step == 0) | (step == half)
        at, at_id = tl.where(starts, sign * first, at), tl.where(starts, sign * draft.to(tl.int32), at_id)
        # The next token in rank.
        best, best_id = at, tl.full((), nowhere, tl.int32)
        for start in range(0, vocab, BLOCK):
            columns = start + lanes
            order, ids = sign * ORDER(p, columns, P_FLAGS), sign * columns
            later = (columns < vocab) & ((order < at) | ((order == at) & (ids > at_id)))
            top = tl.max(tl.where(later, order, float("-inf")), 0)
            top_id = tl.min(tl.where(later & (order == top), ids, nowhere), 0)
            better = (top > best) | (best_id == nowhere) | ((top == best) & (top_id < best_id))
            better = better & (top_id != nowhere)
            best, best_id = tl.where(better, top, best), tl.where(better, top_id, best_id)
        exists = best_id != nowhere
        other = tl.where(exists, sign * best_id, 0) + one
        p_o, q_o = tl.sum(P(p, other, P_FLAGS), 0), tl.sum(Q(q, other, Q_FLAGS), 0)
        alike = exists & (tl.abs(p_o - p_x) < a)
        if NEAR:
            y = tl.max(other, 0)
            gap = tl.load(vectors + y * dimensions + dims, mask=dims < dimensions, other=0.0)
            gap -= tl.load(vectors + draft * dimensions + dims, mask=dims < dimensions, other=0.0)
            both = (tl.load(known + y) != 0) & (tl.load(known + draft) != 0)
            alike = alike & (tl.sum(gap * gap, 0) < b) & both
        p_sum += tl.where(alike, p_o, 0.0)
        q_sum += tl.where(alike, q_o, 0.0)
        at, at_id = best, best_id
        step = tl.where(exists, step + 1, tl.where(step < half, half, group))
    return p_sum / q_sum


@triton.jit
def _typical(p, p_x, exact, epsilon, alpha, vocab, P: tl.constexpr, P_FLAGS: tl.constexpr, BLOCK: tl.constexpr):
    """1 if p(x) >= min(epsilon, alpha exp(-H(p))) > 0, else `exact`."""
    entropy = p_x * 0
    for start in range(0, vocab, BLOCK):
        tile = P(p, start + tl.arange(0, BLOCK), P_FLAGS)
        entropy -= tl.sum(tl.where(tile > 0, tile * tl.log(tl.where(tile > 0, tile, 1.0)), 0.0), 0)
    threshold = tl.minimum(epsilon, alpha * tl.exp(-entropy))
    return tl.where((p_x >= threshold) & (threshold > 0), 1.0, exact)


@triton.jit
def _top_m(p, x, exact, m, vocab, P: tl.constexpr, P_FLAGS: tl.constexpr, BLOCK: tl.constexpr):
    """1 if fewer than `m` tokens are more likely than the token in the block `x`, and it has mass; else `exact`."""
    p_x = tl.max(P(p, x, P_FLAGS), 0)
    better = m * 0
    for start in range(0, vocab, BLOCK):
        better += tl.sum((P(p, start + tl.arange(0, BLOCK), P_FLAGS) > p_x).to(tl.int32), 0)
    return tl.where((better < m) & (p_x > 0), 1.0, exact)


@triton.jit
def _coarse(
    p, q, draft, exact, members, shares, most,
    P: tl.constexpr, Q: tl.constexpr, P_FLAGS: tl.constexpr, Q_FLAGS: tl.constexpr, MEMBERS: tl.constexpr,
):  # fmt: skip
    """The mean of min(1, P(group) / Q(group)) over the groups of the draft; `exact` if it is in its own group alone."""
    ranks = tl.arange(0, MEMBERS)
    total, groups, rank = exact * 0, 0, 0
    while rank < most:
        center = tl.load(members + draft * most + rank)
        rank += 1
        if center >= 0:
            tokens = tl.load(members + center.to(tl.int64) * most + ranks, mask=ranks < most, other=-1)
            share = tl.load(shares + tokens, mask=tokens >= 0, other=0.0)
            p_group = tl.sum(P(p, tokens, P_FLAGS) * share, 0)
            q_group = tl.sum(Q(q, tokens, Q_FLAGS) * share, 0)
            total += tl.where(q_group > 0, tl.minimum(p_group / q_group, 1.0), 0.0)
            groups += 1
    return tl.where(groups == 1, exact, total / groups)


@triton.jit
def _fallback(q, p_x, exact, sure, rollback, vocab, Q: tl.constexpr, Q_FLAGS: tl.constexpr, BLOCK: tl.constexpr):
    """1 if the largest q exceeds `sure` and p(x) >= rollback, else `exact`."""
    largest = p_x * 0
    for start in range(0, vocab, BLOCK):
        largest = tl.maximum(largest, tl.max(Q(q, start + tl.arange(0, BLOCK), Q_FLAGS), 0))
    return tl.where((largest > sure) & (p_x >= rollback), 1.0, exact)
