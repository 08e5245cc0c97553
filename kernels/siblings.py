"""Kernel 13: the siblings of a static draft tree, one level at a time; see `mmspec.drafters.tree.specinfer`.

One program per entry samples all of its children, by inverting the CDF without the children so far, and writes out the
distribution that they were sampled from, which the walk down the tree reads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.inverse_cdf import GROUP, cdf_goal, mass, sample_reference, seek
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

CHUNK = 8192


def sample_siblings(
    q: SoftmaxStats, u: Tensor, window: Tensor, probs: Tensor, first: int, entry: int, count: int, distinct: bool
) -> None:
    """Samples the children of the n entries of a level, and writes them and the distributions.

    Args:
        q: The distributions of the entries, [B, n, V].
        u: float32 [B, m] in [0, 1), the uniform random numbers of all nodes.
        window: int64 [B, 1 + m]; entry `first + i * count + r` becomes the r-th child of entry i of the level, 0 where
            there is no distribution.
        probs: float32 [B, N, V]; the distributions are written to its entries `entry` to `entry + n - 1`.
        first: The entry of the first child.
        entry: The entry of the first parent.
        count: Children of an entry.
        distinct: Whether a child is sampled from what the earlier ones have left. If they have left nothing, one of
            them is repeated.
    """
    sample_siblings_op(*q.source(), u, window, probs, first, entry, count, distinct)


def sample_siblings_reference(
    q: SoftmaxStats, u: Tensor, window: Tensor, probs: Tensor, first: int, entry: int, count: int, distinct: bool
) -> None:
    """`sample_siblings` in torch and float64."""
    all_probs = q.dense(torch.float64)
    n = all_probs.shape[1]
    probs[:, entry : entry + n] = all_probs.float()
    rest = all_probs.clone()
    for rank in range(count):
        numbers = u[:, first - 1 + rank : first - 1 + n * count : count]
        mass_left = rest.sum(-1, keepdim=True)
        x = sample_reference(torch.where(mass_left > 0, rest, all_probs), numbers).clamp(min=0)
        window[:, first + rank : first + n * count : count] = x
        if distinct:
            rest = rest.scatter(-1, x[..., None], 0.0)


@triton.jit
def remaining(source, slot, columns, held, ranks, rank, DISTINCT: tl.constexpr, FLAGS: tl.constexpr):
    """The distribution of a slot at `columns` without its children of a rank below `rank`, which `held` has."""
    weights = probabilities(source, slot, columns, FLAGS[0], FLAGS[1], FLAGS[2])
    if DISTINCT:
        earlier = 0
        while earlier < rank:
            token = tl.sum(tl.where(ranks == earlier, held, 0), 0)
            weights = tl.where(columns == token, 0.0, weights)
            earlier += 1
    return weights


@kernel
def _sample_siblings(
    cond, uncond, allowed, floats, ints, us, window, draft_probs, m, n, first, drafted, count, entries_row, vocab,
    slots, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, DISTINCT: tl.constexpr, RANKS: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    FLAGS: tl.constexpr = (GUIDED, MASKED, UNIT)
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    slot = tl.program_id(0).to(tl.int64)
    row, entry = slot // n, slot % n
    written = draft_probs + (row * entries_row + drafted + entry) * vocab
    node = first - 1 + entry * count
    lanes, ranks = tl.arange(0, BLOCK), tl.arange(0, RANKS)
    held = tl.zeros((RANKS,), tl.int32)
    for start in range(0, vocab, BLOCK):
        columns = start + lanes
        inside = columns < vocab
        tl.store(written + columns, probabilities(source, slot, columns, GUIDED, MASKED, UNIT), mask=inside)
    rank = 0
    while rank < count:
        total = tl.zeros((), tl.float64)
        for start in range(0, vocab, BLOCK):
            total += mass(remaining(source, slot, start + lanes, held, ranks, rank, DISTINCT, FLAGS), BLOCK, GROUP)
        without = rank
        if total <= 0:
            without = 0  # a repeated child
            for start in range(0, vocab, BLOCK):
                total += mass(remaining(source, slot, start + lanes, held, ranks, 0, DISTINCT, FLAGS), BLOCK, GROUP)
        token = tl.full((), -1, tl.int32)
        if total > 0:
            goal = cdf_goal(tl.load(us + row * m + node + rank), total)
            below = tl.zeros((), tl.float64)
            for start in range(0, vocab, BLOCK):
                weights = remaining(source, slot, start + lanes, held, ranks, without, DISTINCT, FLAGS)
                sampled = seek(weights, goal - below, BLOCK, GROUP)
                token = tl.where((token < 0) & (sampled < BLOCK), start + sampled, token)
                below += mass(weights, BLOCK, GROUP)
        token = tl.maximum(token, 0)
        held = tl.where(ranks == rank, token, held)
        tl.store(window + row * (m + 1) + node + rank + 1, token.to(tl.int64))
        rank += 1


@operator("mmspec::sample_siblings", mutates_args=("window", "probs"))
def sample_siblings_op(
    cond: Tensor,
    uncond: Tensor | None,
    allowed: Tensor | None,
    floats: Tensor,
    ints: Tensor,
    u: Tensor,
    window: Tensor,
    probs: Tensor,
    first: int,
    entry: int,
    count: int,
    distinct: bool,
) -> None:
    """`sample_siblings` with plain tensors; the first five are q."""
    if chosen(cond) == "torch":
        q = SoftmaxStats(cond, uncond, allowed, floats, ints)
        return sample_siblings_reference(q, u, window, probs, first, entry, count, distinct)
    (batch, n), vocab = ints.shape[:2], cond.shape[-1]
    block = min(max(GROUP, triton.next_power_of_2(vocab)), CHUNK)
    with launchable(cond):
        _sample_siblings[(batch * n,)](
            cond, uncond, allowed, floats, ints, u.contiguous(), window, probs,
            u.shape[1], n, first, entry, count, probs.shape[1], vocab, cond.shape[1], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, DISTINCT=distinct,
            RANKS=triton.next_power_of_2(count), BLOCK=block, GROUP=GROUP, num_warps=warps(block),
        )  # fmt: skip
    return None


@sample_siblings_op.register_fake
def _(*given: Tensor | int | bool | None) -> None:
    return None
