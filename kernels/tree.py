"""Kernel 4: the walk down a tree of drafts, by recursive rejection as in `mmspec.sampling.tree_rejection`.

One program per sequence. What a rejected sibling leaves of the distribution is not kept but told again from the numbers that
normalised it, so that nothing as wide as the vocabulary is written; only the entries on the accepted path are read, and
each of their siblings once more for every one after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, warps
from mmspec.kernels.inverse_cdf import GROUP, aim, draw_reference, mass, seek
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities

WITHOUT_REPLACEMENT, INDEPENDENT, CHOSEN = range(3)
CHUNK = 8192


@dataclass(frozen=True)
class Branches:
    """A tree of m drafted nodes; entry 0 is the root, entry j is node j.

    Attributes:
        tokens: int64 [B, m].
        children: int64 [B or 1, 1 + m, K], the entries that hang from each in order; 0 where there are no more.
        height: The longest path, D.
        drawn: How siblings were: `WITHOUT_REPLACEMENT`, `INDEPENDENT`, or `CHOSEN` as a function of what is above.
        draft_probs: float32 [B, n, V], what the children of the first n entries were drawn from; None for `CHOSEN`.
    """

    tokens: Tensor
    children: Tensor
    height: int
    drawn: int
    draft_probs: Tensor | None


def walk(
    p: SoftmaxStats, branches: Branches, accept_u: Tensor, resample_u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Walks from the root to the first entry whose siblings all fail, and draws the token after it.

    Args:
        p: The distributions after the 1 + m entries.
        branches: The tree.
        accept_u: float32 [B, m] in [0, 1), of the nodes.
        resample_u: float32 [B, D + 1], of the depths.

    Returns:
        int64 [B, D + 1], the accepted path's tokens and the one drawn after it, then zeros (the drawn one is -1 where p
            is not a distribution); int64 [B], how many were accepted; int64 [B], at how many depths one was tested;
            int64 [B, D], the path's entries, after its end i + 1 at i.
    """
    tree = branches
    return tree_walk(
        *p.source(), tree.tokens, tree.children, tree.draft_probs, accept_u, resample_u, tree.height, tree.drawn
    )


def walk_reference(
    p: SoftmaxStats, branches: Branches, accept_u: Tensor, resample_u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `walk` gives, in torch and float64, one sequence and one sibling at a time."""
    everything, tree = p.dense(torch.float64), branches
    batch, vocab = len(tree.tokens), everything.shape[-1]
    tokens = torch.zeros(batch, tree.height + 1, dtype=torch.int64)
    path = torch.arange(1, tree.height + 1).repeat(batch, 1)
    accepted, tested = torch.zeros(batch, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    for row in range(batch):
        entry, going = 0, True
        while going:
            probs, going, any_tested = everything[row, entry], False, False
            before: list[int] = []
            for child in tree.children[min(row, len(tree.children) - 1), entry].tolist():
                if child == 0:
                    break
                x = int(tree.tokens[row, child - 1])
                if tree.draft_probs is None:
                    q = torch.zeros(vocab, dtype=torch.float64)
                    q[x] = float(x not in before)
                else:
                    q = tree.draft_probs[row, min(entry, tree.draft_probs.shape[1] - 1)].double()
                    if tree.drawn == WITHOUT_REPLACEMENT and before:
                        q = q.clone()
                        q[before] = 0.0
                        q = q / q.sum().clamp(min=torch.finfo(torch.float32).tiny)
                before.append(x)
                if not q[x] > 0:
                    continue
                any_tested = True
                if accept_u[row, child - 1].double() < probs[x] / q[x]:
                    tokens[row, accepted[row]], path[row, accepted[row]] = x, child
                    accepted[row] += 1
                    entry, going = child, True
                    break
                left = (probs - q).clamp(min=0)
                probs = left / left.sum() if left.sum() > 0 else probs
            tested[row] += int(any_tested)
        tokens[row, accepted[row]] = draw_reference(probs, resample_u[row, accepted[row]])
    return tuple(t.to(p.device) for t in (tokens, accepted, tested, path))  # type: ignore[return-value]


@triton.jit
def _sibling(drafts, columns, entry, rank, norm, DRAWN: tl.constexpr):
    """What the rank-th child of `entry` was drawn from, at `columns`; `norm` is what is left of it after the others.

    `drafts` is (distributions, tokens, children, n, most, vocab), the pointers being those of this row.
    """
    draft_probs, tokens, children, n, most, vocab = drafts
    x = tl.load(tokens + tl.load(children + entry * most + rank) - 1)
    if DRAWN == 2:
        q = tl.where(columns == x, 1.0, 0.0)
    else:
        inside = (columns >= 0) & (columns < vocab)
        q = tl.load(draft_probs + tl.minimum(entry, n - 1) * vocab + columns, mask=inside, other=0.0)
    if DRAWN != 1:
        earlier = 0
        while earlier < rank:
            y = tl.load(tokens + tl.load(children + entry * most + earlier) - 1)
            q = tl.where(columns == y, 0.0, q)
            earlier += 1
    if DRAWN == 0:
        q = q / norm
    return q


@triton.jit
def _left(
    source, drafts, columns, slot, entry, ranks, sums, norms,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, DRAWN: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """The distribution of `slot`, after `entry`, at `columns`, after `ranks` of its children were tested.

    `sums` says what was left after each, 0 for one that was none; `norms` are those of `_sibling`.
    """
    probs = probabilities(source, slot, columns, GUIDED, MASKED, UNIT)
    ids = tl.arange(0, RANKS)
    rank = 0
    while rank < ranks:
        total = tl.sum(tl.where(ids == rank, sums, 0.0), 0)
        norm = tl.sum(tl.where(ids == rank, norms, 0.0), 0)
        if total > 0:
            probs = tl.maximum(probs - _sibling(drafts, columns, entry, rank, norm, DRAWN), 0.0) / total
        rank += 1
    return probs


@triton.jit
def _walk(
    cond, uncond, allowed, floats, ints, tokens, children, draft_probs, accept_us, resample_us,
    out, accepted, tested, path, m, n, most, height, vocab, kids_stride, stats, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, DRAWN: tl.constexpr,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, stats, vocab, stride_row, stride_slot, stride_column)
    row = tl.program_id(0).to(tl.int64)
    children += row * kids_stride
    tokens += row * m
    if DRAWN != 2:
        draft_probs += row * n * vocab
    drafts = (draft_probs, tokens, children, n, most, vocab)
    ids, lanes = tl.arange(0, RANKS), tl.arange(0, BLOCK)
    one = tl.zeros((1,), tl.int64)
    sums, norms = tl.zeros((RANKS,), tl.float32), tl.full((RANKS,), 1.0, tl.float32)
    entry, child = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    slot = row * (m + 1)
    depth, depths, going, rank = 0, 0, 1, 0
    while going != 0:
        sums, norms = tl.zeros((RANKS,), tl.float32), tl.full((RANKS,), 1.0, tl.float32)
        going, rank, any_tested = 0, 0, 0
        child = tl.load(children + entry * most)
        while (rank < most) & (going == 0) & (child > 0):
            x = tl.load(tokens + child - 1)
            norm = 1.0
            if DRAWN == 0:
                if rank > 0:
                    rest = tl.zeros((), tl.float64)
                    for start in range(0, vocab, BLOCK):
                        rest += mass(_sibling(drafts, start + lanes, entry, rank, 1.0, DRAWN), BLOCK, GROUP)
                    norm = tl.maximum(rest.to(tl.float32), 1.1754943508222875e-38)
                norms = tl.where(ids == rank, norm, norms)
            q_x = tl.sum(_sibling(drafts, x + one, entry, rank, norm, DRAWN), 0)
            if q_x > 0:
                any_tested = 1
                p_x = _left(
                    source, drafts, x + one, slot, entry, rank, sums, norms, GUIDED, MASKED, UNIT, DRAWN, RANKS
                )  # fmt: skip
                if tl.load(accept_us + row * m + child - 1) < tl.div_rn(tl.sum(p_x, 0), q_x):
                    tl.store(out + row * (height + 1) + depth, x)
                    tl.store(path + row * height + depth, child)
                    going = 1
                else:
                    rest = tl.zeros((), tl.float64)
                    for start in range(0, vocab, BLOCK):
                        columns = start + lanes
                        probs = _left(
                            source, drafts, columns, slot, entry, rank, sums, norms, GUIDED, MASKED, UNIT, DRAWN, RANKS
                        )  # fmt: skip
                        q = _sibling(drafts, columns, entry, rank, norm, DRAWN)
                        rest += mass(tl.maximum(probs - q, 0.0), BLOCK, GROUP)
                    sums = tl.where(ids == rank, rest.to(tl.float32), sums)
            if going == 0:
                rank += 1
                if rank < most:
                    child = tl.load(children + entry * most + rank)
        depths += any_tested
        if going != 0:
            entry = child
            slot = row * (m + 1) + entry
            depth += 1
    total = tl.zeros((), tl.float64)
    for start in range(0, vocab, BLOCK):
        columns = start + lanes
        probs = _left(source, drafts, columns, slot, entry, rank, sums, norms, GUIDED, MASKED, UNIT, DRAWN, RANKS)
        total += mass(probs, BLOCK, GROUP)
    token = tl.full((), -1, tl.int32)
    if total > 0:
        goal = aim(tl.load(resample_us + row * (height + 1) + depth), total)
        below = tl.zeros((), tl.float64)
        for start in range(0, vocab, BLOCK):
            columns = start + lanes
            probs = _left(source, drafts, columns, slot, entry, rank, sums, norms, GUIDED, MASKED, UNIT, DRAWN, RANKS)
            found = seek(probs, goal - below, BLOCK, GROUP)
            token = tl.where((token < 0) & (found < BLOCK), start + found, token)
            below += mass(probs, BLOCK, GROUP)
    tl.store(out + row * (height + 1) + depth, token.to(tl.int64))
    tl.store(accepted + row, depth)
    tl.store(tested + row, depths)


@torch.library.custom_op("mmspec::tree_walk", mutates_args=())
def tree_walk(
    cond: Tensor,
    uncond: Tensor | None,
    allowed: Tensor | None,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    children: Tensor,
    draft_probs: Tensor | None,
    accept_u: Tensor,
    resample_u: Tensor,
    height: int,
    drawn: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`walk`, from and to plain tensors."""
    p = (cond, uncond, allowed, floats, ints)
    if chosen(cond) == "torch":
        return walk_reference(
            SoftmaxStats(*p), Branches(tokens, children, height, drawn, draft_probs), accept_u, resample_u
        )
    batch, m = tokens.shape
    vocab, most = cond.shape[-1], children.shape[-1]
    out, accepted, tested, path = _outputs(tokens, height)
    out.zero_()
    path.copy_(torch.arange(1, height + 1, device=path.device))
    block = min(max(GROUP, triton.next_power_of_2(vocab)), CHUNK)
    with launchable(cond):
        _walk[(batch,)](
            *p, tokens.contiguous(), children.contiguous(), None if draft_probs is None else draft_probs.contiguous(),
            accept_u.contiguous(), resample_u.contiguous(), out, accepted, tested, path,
            m, 0 if draft_probs is None else draft_probs.shape[1], most, height, vocab,
            0 if len(children) == 1 else (m + 1) * most, cond.shape[1], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, DRAWN=drawn,
            RANKS=triton.next_power_of_2(most), BLOCK=block, GROUP=GROUP, num_warps=warps(block),
        )  # fmt: skip
    return out, accepted, tested, path


@tree_walk.register_fake
def _(
    cond: Tensor,
    uncond: Tensor | None,
    allowed: Tensor | None,
    floats: Tensor,
    ints: Tensor,
    tokens: Tensor,
    children: Tensor,
    draft_probs: Tensor | None,
    accept_u: Tensor,
    resample_u: Tensor,
    height: int,
    drawn: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(tokens, height)


def _outputs(tokens: Tensor, height: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = tokens.shape[0]
    return (
        tokens.new_empty((batch, height + 1)),
        tokens.new_empty((batch,)),
        tokens.new_empty((batch,)),
        tokens.new_empty((batch, height)),
    )
