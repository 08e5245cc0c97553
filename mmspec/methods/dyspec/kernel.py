"""Kernel 19: trees that are sampled node by node, with one depth more at a time; see `mmspec.methods.dyspec.drafter`.

One program per sequence grows its tree anew with the distributions of the entries of one more depth. Nodes of less
depth are those of the tree before, in the same order; only children of the new depth are sampled. The host need not
know the shape.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.inverse_cdf import GROUP, cdf_goal, mass, sample_reference, seek
from mmspec.kernels.siblings import remaining
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

CHUNK = 4096


class SampledTree(NamedTuple):
    """A tree of m nodes.

    Attributes:
        window: int64 [B, 1 + m], the tokens of the entries, the root's first.
        parents: int64 [B, m], the parent entry of each node.
        shares: float64 [B, m], the probability of each node given the earlier siblings.
        probs: float32 [B, m, V], the distributions of the children of the first m entries. Those of entries without
            children have not been written.
    """

    window: Tensor
    parents: Tensor
    shares: Tensor
    probs: Tensor


def sample_depth(q: SoftmaxStats, u: Tensor, last: Tensor, before: SampledTree | None, depth: int) -> SampledTree:
    """Grows the tree of m nodes in which entries of a depth have children, and those below have none.

    The next node is a child of the entry of highest value, the first one of several. The root has the value 1. A child
    that is sampled with probability R has the value v R, where v is that of its entry, which is left with v (1 - R).

    Args:
        q: The distributions of the entries of the tree `before` without its root, [B, m, V]; at depth 0 that of the
            root, [B, 1, V].
        u: float32 [B, m] in [0, 1), the uniform random numbers of the children of entries of this depth.
        last: int64 [B, 1], the token of the root.
        before: The tree in which entries of this depth have no children; None at depth 0.
    """
    window, parents, shares, probs = (None, None, None, None) if before is None else before
    return SampledTree(*sample_depth_op(*q.source(), u, last, window, parents, shares, probs, depth))


def sample_depth_reference(
    q: SoftmaxStats, u: Tensor, last: Tensor, before: SampledTree | None, depth: int
) -> SampledTree:
    """`sample_depth` in torch and float64."""
    every = q.dense(torch.float64)
    left, (batch, m), n = every.clone(), u.shape, every.shape[1]
    row = torch.arange(batch, device=u.device)
    window, parents, shares, probs = _outputs(u, last, every.shape[-1])
    window[:, 0] = last[:, 0]
    value = torch.full((batch, 1 + m), -1.0, dtype=torch.float64, device=u.device)
    value[:, 0] = 1.0
    # By entry: its depth, and the entry of the tree before that it is.
    depths, origin = torch.zeros_like(window), torch.zeros_like(window)
    sampled = copied = torch.zeros_like(row)
    for j in range(m):
        entry = value.argmax(1)
        is_new = depths[row, entry] == depth
        slot = origin[row, entry].sub(int(before is not None)).clamp(0, n - 1)
        own, weights = every[row, slot], left[row, slot]
        total = weights.sum(-1)
        x = sample_reference(torch.where(total[:, None] > 0, weights, own), u[row, sampled]).clamp(min=0)
        share = torch.where(total > 0, weights[row, x].float() / total.float(), 0.0).double()
        distribution = own.float()
        left[row, slot, x] = torch.where(is_new, 0.0, weights[row, x])
        if before is not None:
            x = torch.where(is_new, x, before.window[row, 1 + copied])
            share = torch.where(is_new, share, before.shares[row, copied])
            earlier = before.probs[row, origin[row, entry].clamp(max=m - 1)]
            distribution = torch.where(is_new[:, None], distribution, earlier)
        sampled, copied = sampled + is_new, copied + ~is_new
        window[:, 1 + j], parents[:, j], shares[:, j], probs[row, entry] = x, entry, share, distribution
        depths[:, 1 + j], origin[:, 1 + j] = depths[row, entry] + 1, torch.where(is_new, 0, copied)
        v = value[row, entry]
        value[row, entry] = v * (1 - share).clamp(min=0)
        value[:, 1 + j] = torch.where(is_new, -1.0, v * share)
    return SampledTree(window, parents, shares, probs)


@kernel
def _sample_depth(
    cond, uncond, allowed, floats, ints, us, last, before_window, before_shares, before_probs,
    window, parents, new_shares, draft_probs, m, n, us_row, depth, vocab,
    slots, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, ROOT: tl.constexpr, ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    FLAGS: tl.constexpr = (GUIDED, MASKED, UNIT)
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    row = tl.program_id(0).to(tl.int64)
    lanes, ids = tl.arange(0, BLOCK), tl.arange(0, ENTRIES)
    one = tl.zeros((1,), tl.int32)
    # By entry: its value, depth, parent and token, and the entry of the tree before that it is.
    value = tl.where(ids == 0, 1.0, -1.0).to(tl.float64)
    depths, origin = tl.zeros((ENTRIES,), tl.int32), tl.zeros((ENTRIES,), tl.int32)
    held = tl.zeros((ENTRIES,), tl.int32)
    parent = tl.full((ENTRIES,), -1, tl.int32)
    sampled, copied = 0, 0
    tl.store(window + row * (m + 1), tl.load(last + row))
    for j in range(0, m):
        best = tl.max(value, 0)
        entry = tl.min(tl.where(value == best, ids, ENTRIES), 0)
        its_depth = tl.sum(tl.where(ids == entry, depths, 0), 0)
        its_origin = tl.sum(tl.where(ids == entry, origin, 0), 0)
        written = draft_probs + (row * m + entry) * vocab
        children = (parent == entry).to(tl.int32)
        rank = tl.sum(children, 0)
        ranks = tl.where(children > 0, tl.cumsum(children, 0) - 1, -1)
        token, share = tl.zeros((), tl.int32), tl.zeros((), tl.float64)
        if its_depth < depth:
            if not ROOT:
                token = tl.load(before_window + row * (m + 1) + 1 + copied).to(tl.int32)
                share = tl.load(before_shares + row * m + copied)
                if rank == 0:
                    earlier = before_probs + (row * m + its_origin) * vocab
                    for start in range(0, vocab, BLOCK):
                        inside = start + lanes < vocab
                        q = tl.load(earlier + start + lanes, mask=inside, other=0.0)
                        tl.store(written + start + lanes, q, mask=inside)
                copied += 1
        else:
            slot = row * n + (its_origin if ROOT else its_origin - 1)
            if rank == 0:
                for start in range(0, vocab, BLOCK):
                    q = probabilities(source, slot, start + lanes, GUIDED, MASKED, UNIT)
                    tl.store(written + start + lanes, q, mask=start + lanes < vocab)
            total = tl.zeros((), tl.float64)
            for start in range(0, vocab, BLOCK):
                total += mass(remaining(source, slot, start + lanes, held, ranks, rank, True, FLAGS), BLOCK, GROUP)
            mass_left, without = total.to(tl.float32), rank
            if total <= 0:
                without = 0  # a repeated child
                for start in range(0, vocab, BLOCK):
                    total += mass(remaining(source, slot, start + lanes, held, ranks, 0, True, FLAGS), BLOCK, GROUP)
            token -= 1
            if total > 0:
                goal = cdf_goal(tl.load(us + row * us_row + sampled), total)
                below = tl.zeros((), tl.float64)
                for start in range(0, vocab, BLOCK):
                    weights = remaining(source, slot, start + lanes, held, ranks, without, True, FLAGS)
                    found = seek(weights, goal - below, BLOCK, GROUP)
                    token = tl.where((token < 0) & (found < BLOCK), start + found, token)
                    below += mass(weights, BLOCK, GROUP)
            token = tl.maximum(token, 0)
            if mass_left > 0:
                weight = tl.sum(remaining(source, slot, token + one, held, ranks, rank, True, FLAGS), 0)
                share = tl.div_rn(weight, mass_left).to(tl.float64)
            sampled += 1
        is_old = its_depth < depth
        tl.store(window + row * (m + 1) + 1 + j, token.to(tl.int64))
        tl.store(parents + row * m + j, entry.to(tl.int64))
        tl.store(new_shares + row * m + j, share)
        new = ids == 1 + j
        value = tl.where(ids == entry, best * tl.maximum(1.0 - share, 0.0), value)
        value = tl.where(new, tl.where(is_old, best * share, -1.0), value)
        depths, parent = tl.where(new, its_depth + 1, depths), tl.where(new, entry, parent)
        origin, held = tl.where(new, tl.where(is_old, copied, 0), origin), tl.where(new, token, held)


@operator("mmspec::sample_depth", mutates_args=())
def sample_depth_op(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, u: Tensor, last: Tensor,
    window: Tensor | None, parents: Tensor | None, shares: Tensor | None, probs: Tensor | None, depth: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`sample_depth` with plain tensors; the first five are q, those after `last` are the tree before."""
    if chosen(cond) == "torch":
        before = None
        if window is not None and parents is not None and shares is not None and probs is not None:
            before = SampledTree(window, parents, shares, probs)
        return sample_depth_reference(SoftmaxStats(cond, uncond, allowed, floats, ints), u, last, before, depth)
    (batch, m), vocab = u.shape, cond.shape[-1]
    outputs = _outputs(u, last, vocab)
    block = min(max(GROUP, triton.next_power_of_2(vocab)), CHUNK)
    with launchable(cond):
        _sample_depth[(batch,)](
            cond, uncond, allowed, floats, ints, u, last.contiguous(), window, shares, probs, *outputs,
            m, ints.shape[1], u.stride(0), depth, vocab, cond.shape[1], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, ROOT=window is None,
            ENTRIES=triton.next_power_of_2(1 + m), BLOCK=block, GROUP=GROUP, num_warps=warps(2 * block),
        )  # fmt: skip
    return outputs


@sample_depth_op.register_fake
def _(cond: Tensor, *rest: Tensor | int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    u, last = rest[4], rest[5]
    assert isinstance(u, Tensor) and isinstance(last, Tensor)
    return _outputs(u, last, cond.shape[-1])


def _outputs(u: Tensor, last: Tensor, vocab: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tensors of a `SampledTree`, not initialized."""
    batch, m = u.shape
    window, parents = last.new_empty(batch, 1 + m), last.new_empty(batch, m)
    return window, parents, u.new_empty(batch, m, dtype=torch.float64), u.new_empty(batch, m, vocab)
