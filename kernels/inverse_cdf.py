"""Sampling by inverting the CDF of unnormalized weights: the first token whose running sum exceeds u * total.

Sums over groups of 128 adjacent tokens are float32, sums of those float64. A running float32 sum over 16384 tokens is
off by up to 1e-6 of the total, and two orders of summation would disagree on one sample in 200; with groups, on one in
10**5.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

GROUP = 128


def sample_reference(weights: Tensor, u: Tensor) -> Tensor:
    """The reference: samples from weights [..., V] at u [...] in [0, 1].

    Returns:
        int64 [...]; -1 for weights without mass or with NaN.
    """
    cdf = weights.double().cumsum(-1)
    total = cdf[..., -1:]
    token = (cdf <= u[..., None].double().clamp(max=1 - 2.0**-24) * total).sum(-1)
    return torch.where((total > 0)[..., 0] & (total < torch.inf)[..., 0], token, -1)


@triton.jit
def cdf_goal(u, total):
    """The running sum (float64) that a sample at u must exceed; below the total even for u = 1."""
    return tl.minimum(u.to(tl.float64), 1 - 5.9604644775390625e-08) * total


@triton.jit
def mass(weights, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """The sum of a tile of BLOCK weights, float64."""
    return tl.sum(tl.sum(tl.reshape(weights, (BLOCK // GROUP, GROUP)), 1).to(tl.float64), 0)


@triton.jit
def seek(weights, goal, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """The index in a tile of the first token whose running sum exceeds `goal` (float64); BLOCK if there is none."""
    GROUPS: tl.constexpr = BLOCK // GROUP
    goal = tl.maximum(goal, 0.0)
    table = tl.reshape(weights, (GROUPS, GROUP))
    ids, lanes = tl.arange(0, GROUPS), tl.arange(0, GROUP)
    below = tl.cumsum(tl.sum(table, 1).to(tl.float64), 0)
    group = tl.sum((below <= goal).to(tl.int32), 0)
    base = tl.max(tl.where(ids < group, below, 0.0), 0)
    inner = tl.sum(tl.where(ids[:, None] == group, table, 0.0), 0)
    running = base + tl.cumsum(inner.to(tl.float64), 0)
    lane = tl.sum((running <= goal).to(tl.int32), 0)
    # Rounding may leave the running sum within the group slightly below the sum over the table.
    lane = tl.where(lane < GROUP, lane, tl.max(tl.where(inner > 0, lanes, 0), 0))
    return tl.where(group < GROUPS, group * GROUP + lane, BLOCK)


@triton.jit
def group_sums(weights, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """The sums of the groups of a tile, float64 [BLOCK // GROUP]."""
    return tl.sum(tl.reshape(weights, (BLOCK // GROUP, GROUP)), 1).to(tl.float64)


@triton.jit
def place(sums, start, BLOCK: tl.constexpr, GROUP: tl.constexpr, CHUNKS: tl.constexpr):
    """The sums of the groups of the tile at `start` at their place among those of a row of CHUNKS tiles; else 0."""
    if CHUNKS == 1:
        return sums
    here = tl.arange(0, CHUNKS)[:, None] == start // BLOCK
    return tl.reshape(tl.where(here, sums[None, :], 0.0), (CHUNKS * (BLOCK // GROUP),))


@triton.jit
def seek_group(sums, goal, GROUPS: tl.constexpr):
    """The first of GROUPS groups up to whose end the running sum exceeds `goal`, and the sum before it, float64.

    If there is none, for a total that was added up in another order, the last group of any weight, from minus infinity.
    """
    goal = tl.maximum(goal, 0.0)
    below = tl.cumsum(sums, 0)
    group = tl.sum((below <= goal).to(tl.int32), 0)
    base = tl.max(tl.where(below <= goal, below, 0.0), 0)
    latest = tl.max(tl.where(sums > 0, tl.arange(0, GROUPS), 0), 0)
    return tl.where(group < GROUPS, group, latest), tl.where(group < GROUPS, base, float("-inf"))


@triton.jit
def seek_lane(inner, base, goal, GROUP: tl.constexpr):
    """The first token of a group whose running sum exceeds `goal`, given its weights and the sum before it; or the last
    one of any weight.
    """
    goal = tl.maximum(goal, 0.0)
    running = base + tl.cumsum(inner.to(tl.float64), 0)
    lane = tl.sum((running <= goal).to(tl.int32), 0)
    # Rounding may leave the running sum within the group slightly below the sum over the table.
    return tl.where(lane < GROUP, lane, tl.max(tl.where(inner > 0, tl.arange(0, GROUP), 0), 0))
