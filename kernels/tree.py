"""Kernel 4: the walk down a draft tree, by recursive rejection sampling as in `mmspec.sampling.tree_rejection`.

One program per sequence. The residual after a rejected sibling is not stored but recomputed from its normalizing
constants, so that nothing as wide as the vocabulary is written. Only the entries on the accepted path are read, and
each of their siblings again for every later sibling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.inverse_cdf import GROUP, cdf_goal, mass, sample_reference, seek
from mmspec.kernels.softmax_stats import SoftmaxStats, probabilities
from mmspec.kernels.specialization import kernel

WITHOUT_REPLACEMENT, INDEPENDENT, CHOSEN = range(3)
CHUNK = 8192


@dataclass(frozen=True)
class Branches:
    """A tree of m draft tokens; entry 0 is the root, entry j is node j.

    Attributes:
        tokens: int64 [B, m].
        children: int64 [B or 1, 1 + m, K], the children of each entry in order; 0 where there are no more.
        height: The length of the longest path, D.
        siblings: How siblings were sampled: `WITHOUT_REPLACEMENT`, `INDEPENDENT`, or `CHOSEN` as a function of the
            tokens above.
        draft_probs: float32 [B, n, V], the distributions that the children of the first n entries were sampled from;
            None for `CHOSEN`.
    """

    tokens: Tensor
    children: Tensor
    height: int
    siblings: int
    draft_probs: Tensor | None


def walk_tree(
    p: SoftmaxStats, branches: Branches, accept_u: Tensor, resample_u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Walks down from the root to the first entry whose children are all rejected, and samples the token after it.

    Args:
        p: The target distributions after the 1 + m entries.
        branches: The tree.
        accept_u: float32 [B, m] in [0, 1), the uniform random numbers of the nodes.
        resample_u: float32 [B, D + 1] in [0, 1), those of the depths.

    Returns:
        int64 [B, D + 1], the tokens of the accepted path, then the resampled or bonus token (-1 if p is not a
            distribution), then zeros; int64 [B], the number of accepted tokens; int64 [B], the number of depths at
            which a sibling was tested; int64 [B, D], the entries of the path, after its end i + 1 at i.
    """
    tree = branches
    return walk_tree_op(
        *p.source(), tree.tokens, tree.children, tree.draft_probs, accept_u, resample_u, tree.height, tree.siblings
    )


def walk_tree_reference(
    p: SoftmaxStats, branches: Branches, accept_u: Tensor, resample_u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`walk_tree` in torch and float64, one sequence and one sibling at a time."""
    all_probs, tree = p.dense(torch.float64).cpu(), branches
    accept_u, resample_u = accept_u.cpu(), resample_u.cpu()
    batch, vocab = len(tree.tokens), all_probs.shape[-1]
    tokens = torch.zeros(batch, tree.height + 1, dtype=torch.int64)
    path = torch.arange(1, tree.height + 1).repeat(batch, 1)
    accepted, tested = torch.zeros(batch, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    for row in range(batch):
        entry, going = 0, True
        while going:
            probs, going, any_tested = all_probs[row, entry], False, False
            before: list[int] = []
            for child in tree.children[min(row, len(tree.children) - 1), entry].tolist():
                if child == 0:
                    break
                x = int(tree.tokens[row, child - 1])
                if tree.draft_probs is None:
                    q = torch.zeros(vocab, dtype=torch.float64)
                    q[x] = float(x not in before)
                else:
                    q = tree.draft_probs[row, min(entry, tree.draft_probs.shape[1] - 1)].double().cpu()
                    if tree.siblings == WITHOUT_REPLACEMENT and before:
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
        tokens[row, accepted[row]] = sample_reference(probs, resample_u[row, accepted[row]])
    return tuple(t.to(p.device) for t in (tokens, accepted, tested, path))  # type: ignore[return-value]


@triton.jit
def _sibling(drafts, columns, entry, rank, norm, MODE: tl.constexpr):
    """The draft distribution of the rank-th child of `entry` at `columns`, given its earlier siblings.

    MODE is `Branches.siblings`: 0 without replacement, 1 independent, 2 chosen.
    Without replacement it is divided by `norm`, its mass without the earlier siblings. `drafts` is (distributions,
    tokens, children, n, max_children, vocab), with the pointers of this row.
    """
    draft_probs, tokens, children, n, max_children, vocab = drafts
    x = tl.load(tokens + tl.load(children + entry * max_children + rank) - 1)
    if MODE == 2:
        q = tl.where(columns == x, 1.0, 0.0)
    else:
        inside = (columns >= 0) & (columns < vocab)
        q = tl.load(draft_probs + tl.minimum(entry, n - 1) * vocab + columns, mask=inside, other=0.0)
    if MODE != 1:
        earlier = 0
        while earlier < rank:
            y = tl.load(tokens + tl.load(children + entry * max_children + earlier) - 1)
            q = tl.where(columns == y, 0.0, q)
            earlier += 1
    if MODE == 0:
        q = q / norm
    return q


@triton.jit
def _left(
    source, drafts, columns, slot, entry, ranks, sums, norms,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, MODE: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """The normalized residual of `slot`, after `entry`, at `columns`, after `ranks` of its children were tested.

    `sums` holds the mass of the residual after each child, 0 for an invalid one; `norms` are those of `_sibling`.
    """
    probs = probabilities(source, slot, columns, GUIDED, MASKED, UNIT)
    ids = tl.arange(0, RANKS)
    rank = 0
    while rank < ranks:
        total = tl.sum(tl.where(ids == rank, sums, 0.0), 0)
        norm = tl.sum(tl.where(ids == rank, norms, 0.0), 0)
        if total > 0:
            probs = tl.maximum(probs - _sibling(drafts, columns, entry, rank, norm, MODE), 0.0) / total
        rank += 1
    return probs


@kernel
def _walk_tree(
    cond, uncond, allowed, floats, ints, tokens, children, draft_probs, accept_us, resample_us,
    out, accepted, tested, path, m, n, max_children, height, vocab, children_stride,
    slots, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, MODE: tl.constexpr,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    row = tl.program_id(0).to(tl.int64)
    children += row * children_stride
    tokens += row * m
    if MODE != 2:
        draft_probs += row * n * vocab
    drafts = (draft_probs, tokens, children, n, max_children, vocab)
    ids, lanes = tl.arange(0, RANKS), tl.arange(0, BLOCK)
    one = tl.zeros((1,), tl.int64)
    sums, norms = tl.zeros((RANKS,), tl.float32), tl.full((RANKS,), 1.0, tl.float32)
    entry, child = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    slot = row * (m + 1)
    depth, depths, going, rank = 0, 0, 1, 0
    while going != 0:
        sums, norms = tl.zeros((RANKS,), tl.float32), tl.full((RANKS,), 1.0, tl.float32)
        going, rank, any_tested = 0, 0, 0
        child = tl.load(children + entry * max_children)
        while (rank < max_children) & (going == 0) & (child > 0):
            x = tl.load(tokens + child - 1)
            norm = 1.0
            if MODE == 0:
                if rank > 0:
                    rest = tl.zeros((), tl.float64)
                    for start in range(0, vocab, BLOCK):
                        rest += mass(_sibling(drafts, start + lanes, entry, rank, 1.0, MODE), BLOCK, GROUP)
                    norm = tl.maximum(rest.to(tl.float32), 1.1754943508222875e-38)
                norms = tl.where(ids == rank, norm, norms)
            q_x = tl.sum(_sibling(drafts, x + one, entry, rank, norm, MODE), 0)
            if q_x > 0:
                any_tested = 1
                p_x = _left(
                    source, drafts, x + one, slot, entry, rank, sums, norms, GUIDED, MASKED, UNIT, MODE, RANKS
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
                            source, drafts, columns, slot, entry, rank, sums, norms, GUIDED, MASKED, UNIT, MODE, RANKS
                        )  # fmt: skip
                        q = _sibling(drafts, columns, entry, rank, norm, MODE)
                        rest += mass(tl.maximum(probs - q, 0.0), BLOCK, GROUP)
                    sums = tl.where(ids == rank, rest.to(tl.float32), sums)
            if going == 0:
                rank += 1
                if rank < max_children:
                    child = tl.load(children + entry * max_children + rank)
        depths += any_tested
        if going != 0:
            entry = child
            slot = row * (m + 1) + entry
            depth += 1
    total = tl.zeros((), tl.float64)
    for start in range(0, vocab, BLOCK):
        columns = start + lanes
        probs = _left(source, drafts, columns, slot, entry, rank, sums, norms, GUIDED, MASKED, UNIT, MODE, RANKS)
        total += mass(probs, BLOCK, GROUP)
    token = tl.full((), -1, tl.int32)
    if total > 0:
        goal = cdf_goal(tl.load(resample_us + row * (height + 1) + depth), total)
        below = tl.zeros((), tl.float64)
        for start in range(0, vocab, BLOCK):
            columns = start + lanes
            probs = _left(source, drafts, columns, slot, entry, rank, sums, norms, GUIDED, MASKED, UNIT, MODE, RANKS)
            found = seek(probs, goal - below, BLOCK, GROUP)
            token = tl.where((token < 0) & (found < BLOCK), start + found, token)
            below += mass(probs, BLOCK, GROUP)
    tl.store(out + row * (height + 1) + depth, token.to(tl.int64))
    tl.store(accepted + row, depth)
    tl.store(tested + row, depths)


@operator("mmspec::walk_tree", mutates_args=())
def walk_tree_op(
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
    siblings: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`walk_tree` with plain tensors; the first five are p."""
    p = (cond, uncond, allowed, floats, ints)
    if chosen(cond) == "torch":
        return walk_tree_reference(
            SoftmaxStats(*p), Branches(tokens, children, height, siblings, draft_probs), accept_u, resample_u
        )
    batch, m = tokens.shape
    vocab, max_children = cond.shape[-1], children.shape[-1]
    out, accepted, tested, path = _outputs(tokens, height)
    out.zero_()
    path.copy_(torch.arange(1, height + 1, device=path.device))
    # The other kinds of siblings need more registers: a thread holds half as many tokens of them.
    chunk = CHUNK if siblings == INDEPENDENT else max(CHUNK // 2, GROUP)
    block = min(max(GROUP, triton.next_power_of_2(vocab)), chunk)
    many = warps(CHUNK if block == chunk else block)
    with launchable(cond):
        _walk_tree[(batch,)](
            *p, tokens.contiguous(), children.contiguous(), None if draft_probs is None else draft_probs.contiguous(),
            accept_u.contiguous(), resample_u.contiguous(), out, accepted, tested, path,
            m, 0 if draft_probs is None else draft_probs.shape[1], max_children, height, vocab,
            0 if len(children) == 1 else (m + 1) * max_children, cond.shape[1], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, MODE=siblings,
            RANKS=triton.next_power_of_2(max_children), BLOCK=block, GROUP=GROUP, num_warps=many,
        )  # fmt: skip
    return out, accepted, tested, path


@walk_tree_op.register_fake
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
    siblings: int,
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
