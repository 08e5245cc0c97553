"""Acceptance probabilities of relaxed rules that read many tokens of a slot, as parts of `mmspec.kernels.accept`.

Each of them returns one number for one draft. A row of the vocabulary is read in tiles of BLOCK tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.rule import KernelRule
from mmspec.kernels.softmax_stats import probabilities


def typical_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> float:
    """`typical` in torch, of distributions [V]."""
    threshold = min(rule.a, rule.b * float((-torch.special.entr(p).sum()).exp()))
    return 1.0 if 0 < threshold <= float(p[x]) else float(p[x] / q[x])


def top_m_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> float:
    """`top_m` in torch, of distributions [V]."""
    return 1.0 if int((p > p[x]).sum()) < rule.group and p[x] > 0 else float(p[x] / q[x])


def coarse_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> float:
    """`coarse` in torch, of distributions [V]."""
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


def fallback_reference(p: Tensor, q: Tensor, x: int, rule: KernelRule) -> float:
    """`fallback` in torch, of distributions [V]."""
    return 1.0 if q.max() > rule.a and p[x] >= rule.b else float(p[x] / q[x])


@triton.jit
def typical(
    source, slot, p_x, exact, epsilon, alpha,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """1 if p(x) >= min(epsilon, alpha exp(-H(p))) > 0, else `exact`."""
    _, _, _, _, _, _, vocab, _, _, _ = source
    entropy = p_x * 0
    for start in range(0, vocab, BLOCK):
        p = probabilities(source, slot, start + tl.arange(0, BLOCK), GUIDED, MASKED, UNIT)
        entropy -= tl.sum(tl.where(p > 0, p * tl.log(tl.where(p > 0, p, 1.0)), 0.0), 0)
    threshold = tl.minimum(epsilon, alpha * tl.exp(-entropy))
    return tl.where((p_x >= threshold) & (threshold > 0), 1.0, exact)


@triton.jit
def top_m(
    source, slot, x, exact, m,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """1 if fewer than `m` tokens are more likely than the token in the block `x`, and it has mass; else `exact`."""
    _, _, _, _, _, _, vocab, _, _, _ = source
    p_x = tl.max(probabilities(source, slot, x, GUIDED, MASKED, UNIT), 0)
    better = m * 0
    for start in range(0, vocab, BLOCK):
        p = probabilities(source, slot, start + tl.arange(0, BLOCK), GUIDED, MASKED, UNIT)
        better += tl.sum((p > p_x).to(tl.int32), 0)
    return tl.where((better < m) & (p_x > 0), 1.0, exact)


@triton.jit
def coarse(
    source, slot, q_source, q_slot, draft, exact, members, shares, most,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr, MEMBERS: tl.constexpr,
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
            p = probabilities(source, slot, tokens, GUIDED, MASKED, UNIT)
            q = probabilities(q_source, q_slot, tokens, Q_GUIDED, Q_MASKED, Q_UNIT)
            p_group, q_group = tl.sum(p * share, 0), tl.sum(q * share, 0)
            total += tl.where(q_group > 0, tl.minimum(p_group / q_group, 1.0), 0.0)
            groups += 1
    return tl.where(groups == 1, exact, total / groups)


@triton.jit
def fallback(
    q_source, q_slot, p_x, exact, sure, rollback,
    Q_GUIDED: tl.constexpr, Q_MASKED: tl.constexpr, Q_UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """1 if the largest q exceeds `sure` and p(x) >= rollback, else `exact`."""
    _, _, _, _, _, _, vocab, _, _, _ = q_source
    largest = p_x * 0
    for start in range(0, vocab, BLOCK):
        q = probabilities(q_source, q_slot, start + tl.arange(0, BLOCK), Q_GUIDED, Q_MASKED, Q_UNIT)
        largest = tl.maximum(largest, tl.max(q, 0))
    return tl.where((largest > sure) & (p_x >= rollback), 1.0, exact)
