"""Kernel 4: the walk down a draft tree, by recursive rejection sampling as in `mmspec.sampling.tree_rejection`.

One program per sequence. The residual after a rejected sibling is not stored but recomputed from its normalizing
constants, so that nothing as wide as the vocabulary is written. Only the entries on the accepted path are read, and
each of their siblings again for every later sibling. The rules are those of `mmspec.kernels.acceptance`; p of a sibling
is what the earlier ones have left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.acceptance import CODES, acceptance, acceptance_reference
from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.inverse_cdf import GROUP, cdf_goal, mass, sample_reference, seek
from mmspec.kernels.rule import EXACT_RULE, KernelRule
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


class Walked(NamedTuple):
    """The walk down a tree.

    Attributes:
        tokens: int64 [B, D + 1], the tokens of the accepted path, then the resampled or bonus token (-1 if p is not a
            distribution), then zeros.
        entries: int64 [B, D + 1], the root and the entries of the path, its last one again after its end.
        path: int64 [B, D], the entries of the path without the root; after its end i + 1 at i, as in
            `mmspec.sampling.tree_rejection.TreeVerdict`.
        found: int32 [B, 4 + 3 D], what the host has to know: the number of accepted tokens; the number of depths at
            which a sibling was tested; 1 if the token after them has no distribution, or a sibling that was met;
            `entries` without the root; the bits of D float32, the distances of the acceptance probabilities of the
            tested siblings from the exact ones, summed for each depth; and `tokens`.
    """

    tokens: Tensor
    entries: Tensor
    path: Tensor
    found: Tensor

    def excess(self) -> Tensor:
        """Float32 [B, D], a part of `found`."""
        height = self.path.shape[1]
        return self.found[:, 3 + height : 3 + 2 * height].view(torch.float32)


def walk_tree(
    p: SoftmaxStats, branches: Branches, accept_u: Tensor, resample_u: Tensor, rule: KernelRule = EXACT_RULE
) -> Walked:
    """Walks down from the root to the first entry whose children are all rejected, and samples the token after it.

    Args:
        p: The target distributions after the 1 + m entries.
        branches: The tree.
        accept_u: float32 [B, m] in [0, 1), the uniform random numbers of the nodes.
        resample_u: float32 [B, D + 1] in [0, 1), those of the depths.
        rule: The acceptance rule; slot i of its window is depth i.
    """
    tree = branches
    return Walked(*walk_tree_op(
        *p.source(), tree.tokens, tree.children, tree.draft_probs, accept_u, resample_u, tree.height, tree.siblings,
        CODES[rule.name], rule.a, rule.b, rule.group, rule.near, rule.vectors, rule.known,
    ))  # fmt: skip


def walk_tree_reference(
    p: SoftmaxStats, branches: Branches, accept_u: Tensor, resample_u: Tensor, rule: KernelRule
) -> Walked:
    """`walk_tree` in torch and float64, one sequence and one sibling at a time."""
    all_probs, tree = p.dense(torch.float64).cpu(), branches
    accept_u, resample_u, rule = accept_u.cpu(), resample_u.cpu(), rule.to(torch.device("cpu"))
    batch, vocab, height = len(tree.tokens), all_probs.shape[-1], tree.height
    tokens, entries = (torch.zeros(batch, height + 1, dtype=torch.int64) for _ in range(2))
    numbers, excess = torch.zeros(batch, 3, dtype=torch.int32), torch.zeros(batch, height)
    for row in range(batch):
        entry, depth, tested, going = 0, 0, 0, True
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
                numbers[row, 2] |= int(q[x].isnan())
                if not q[x] > 0:
                    continue
                any_tested = True
                window = torch.full((1, depth + 1), x)
                chance = acceptance_reference(
                    probs.expand(1, depth + 1, -1), q.expand(1, depth + 1, -1), window, rule
                )[0, -1]  # fmt: skip
                excess[row, depth] += abs(min(float(chance), 1.0) - min(float(probs[x] / q[x]), 1.0))
                if accept_u[row, child - 1].double() < chance:
                    tokens[row, depth], entry, going = x, child, True
                    break
                left = (probs - q).clamp(min=0)
                probs = left / left.sum() if left.sum() > 0 else probs
            tested += int(any_tested)
            depth += int(going)
            entries[row, depth:] = entry
        tokens[row, depth] = sample_reference(probs, resample_u[row, depth])
        numbers[row] = torch.tensor([depth, tested, int(numbers[row, 2]) | int(tokens[row, depth] < 0)])
    steps = torch.arange(height)
    path = torch.where(steps < numbers[:, :1], entries[:, 1:], steps + 1)
    found = torch.cat([numbers, entries[:, 1:].int(), excess.view(torch.int32), tokens.int()], dim=1)
    return Walked(*(each.to(p.device) for each in (tokens, entries, path, found)))


@triton.jit
def _sibling(drafts, columns, entry, rank, norm, MODE: tl.constexpr):
    """The draft distribution of the rank-th child of `entry` at `columns`, given its earlier siblings."""
    # MODE is `Branches.siblings`: 0 without replacement, 1 independent, 2 chosen. Without replacement it is divided by
    # `norm`, its mass without the earlier siblings. `drafts` is (distributions, tokens, children, n, max_children,
    # vocab), with the pointers of this row.
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
def _sibling_probs(sibling, columns, FLAGS: tl.constexpr):
    """`_sibling` of (drafts, entry, rank, norm), as rules read q; the only flag is MODE."""
    drafts, entry, rank, norm = sibling
    return _sibling(drafts, columns, entry, rank, norm, FLAGS[0])


@triton.jit
def _left(left, columns, FLAGS: tl.constexpr):
    """The normalized residual of a slot at `columns`, after some of the children of its entry were tested."""
    # `left` is (source, drafts, slot, entry, ranks, sums, norms): `ranks` children of `entry` were tested, `sums` holds
    # the mass of the residual after each child, 0 for an invalid one, and `norms` those of `_sibling`. FLAGS are
    # GUIDED, MASKED, UNIT, MODE, RANKS.
    source, drafts, slot, entry, ranks, sums, norms = left
    probs = probabilities(source, slot, columns, FLAGS[0], FLAGS[1], FLAGS[2])
    ids = tl.arange(0, FLAGS[4])
    rank = 0
    while rank < ranks:
        total = tl.sum(tl.where(ids == rank, sums, 0.0), 0)
        norm = tl.sum(tl.where(ids == rank, norms, 0.0), 0)
        if total > 0:
            probs = tl.maximum(probs - _sibling(drafts, columns, entry, rank, norm, FLAGS[3]), 0.0) / total
        rank += 1
    return probs


@kernel
def _walk_tree(
    cond, uncond, allowed, floats, ints, tokens, children, draft_probs, accept_us, resample_us, near, vectors, known,
    out, entries, path, found, a, b, m, drafts_row, n, max_children, height, vocab, group, neighbors, dimensions,
    children_stride, slots, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, MODE: tl.constexpr,
    RULE: tl.constexpr, NEAR: tl.constexpr, NEIGHBORS: tl.constexpr, DIM: tl.constexpr,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    FLAGS: tl.constexpr = (GUIDED, MASKED, UNIT, MODE, RANKS)
    Q_FLAGS: tl.constexpr = (MODE, RANKS)
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    rule = (near, vectors, known, a, b, group, neighbors, dimensions)
    row = tl.program_id(0).to(tl.int64)
    children += row * children_stride
    tokens += row * drafts_row
    if MODE != 2:
        draft_probs += row * n * vocab
    drafts = (draft_probs, tokens, children, n, max_children, vocab)
    out += row * (height + 1)
    entries += row * (height + 1)
    path += row * height
    report = found + row * (4 + 3 * height)
    ids, lanes = tl.arange(0, RANKS), tl.arange(0, BLOCK)
    one = tl.zeros((1,), tl.int64)
    sums, norms = tl.zeros((RANKS,), tl.float32), tl.full((RANKS,), 1.0, tl.float32)
    entry, child = tl.zeros((), tl.int64), tl.zeros((), tl.int64)
    slot = row * (m + 1)
    depth, depths, going, rank, broken = 0, 0, 1, 0, 0
    tl.store(entries, entry)
    while going != 0:
        sums, norms = tl.zeros((RANKS,), tl.float32), tl.full((RANKS,), 1.0, tl.float32)
        going, rank, any_tested = 0, 0, 0
        excess = tl.zeros((), tl.float32)
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
            broken = tl.where(q_x != q_x, 1, broken)
            if q_x > 0:
                any_tested = 1
                left = (source, drafts, slot, entry, rank, sums, norms)
                p_x = tl.sum(_left(left, x + one, FLAGS), 0)
                exact = tl.div_rn(p_x, q_x)
                chance = acceptance(
                    left, (drafts, entry, rank, norm), x, exact, p_x, q_x, depth, rule, vocab,
                    _left, _sibling_probs, _left, FLAGS, Q_FLAGS, RULE, NEAR, NEIGHBORS, DIM, BLOCK,
                )  # fmt: skip
                if RULE != 0:
                    excess += tl.abs(tl.minimum(chance, 1.0) - tl.minimum(exact, 1.0))
                if tl.load(accept_us + row * m + child - 1) < chance:
                    tl.store(out + depth, x)
                    tl.store(entries + depth + 1, child)
                    tl.store(path + depth, child)
                    tl.store(report + 3 + depth, child.to(tl.int32))
                    tl.store(report + 3 + 2 * height + depth, x.to(tl.int32))
                    going = 1
                else:
                    rest = tl.zeros((), tl.float64)
                    for start in range(0, vocab, BLOCK):
                        columns = start + lanes
                        q = _sibling(drafts, columns, entry, rank, norm, MODE)
                        rest += mass(tl.maximum(_left(left, columns, FLAGS) - q, 0.0), BLOCK, GROUP)
                    sums = tl.where(ids == rank, rest.to(tl.float32), sums)
            if going == 0:
                rank += 1
                if rank < max_children:
                    child = tl.load(children + entry * max_children + rank)
        depths += any_tested
        tl.store(report + 3 + height + depth, excess.to(tl.int32, bitcast=True), mask=depth < height)
        if going != 0:
            entry = child
            slot = row * (m + 1) + entry
            depth += 1
    left = (source, drafts, slot, entry, rank, sums, norms)
    total = tl.zeros((), tl.float64)
    for start in range(0, vocab, BLOCK):
        total += mass(_left(left, start + lanes, FLAGS), BLOCK, GROUP)
    token = tl.full((), -1, tl.int32)
    if total > 0:
        goal = cdf_goal(tl.load(resample_us + row * (height + 1) + depth), total)
        below = tl.zeros((), tl.float64)
        for start in range(0, vocab, BLOCK):
            probs = _left(left, start + lanes, FLAGS)
            sampled = seek(probs, goal - below, BLOCK, GROUP)
            token = tl.where((token < 0) & (sampled < BLOCK), start + sampled, token)
            below += mass(probs, BLOCK, GROUP)
    finish_walk(out, entries, path, report, token, entry, depth, depths, height, broken, GROUP)


@triton.jit
def finish_walk(out, entries, path, report, token, entry, depth, depths, height, broken, GROUP: tl.constexpr):
    """Writes what a walk that ended at `entry` has not written yet; the pointers are those of its row."""
    tl.store(report, depth)
    tl.store(report + 1, depths)
    tl.store(report + 2, broken | (token < 0).to(tl.int32))
    for start in range(0, height + 1, GROUP):
        at = start + tl.arange(0, GROUP)
        after, inside = at > depth, at <= height
        tl.store(out + at, tl.where(after, 0, token).to(tl.int64), mask=inside & (at >= depth))
        tl.store(report + 3 + 2 * height + at, tl.where(after, 0, token), mask=inside & (at >= depth))
        tl.store(path + at, (at + 1).to(tl.int64), mask=(at < height) & (at >= depth))
        tl.store(entries + at, entry + at * 0, mask=inside & after)
        tl.store(report + 2 + at, (entry + at * 0).to(tl.int32), mask=inside & after)
        tl.store(report + 3 + height + at, 0, mask=(at < height) & after)


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
    rule: int,
    a: float,
    b: float,
    group: int,
    near: Tensor | None,
    vectors: Tensor | None,
    known: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`walk_tree` with plain tensors; the first five are p."""
    p = (cond, uncond, allowed, floats, ints)
    if chosen(cond) == "torch":
        names = {code: name for name, code in CODES.items()}
        return walk_tree_reference(
            SoftmaxStats(*p), Branches(tokens, children, height, siblings, draft_probs), accept_u, resample_u,
            KernelRule(names[rule], a, b, group, near, vectors, known),
        )  # fmt: skip
    batch, m = tokens.shape
    vocab, max_children = cond.shape[-1], children.shape[-1]
    outputs = empty_walk(tokens, height)
    drafts = tokens if tokens.stride(1) == 1 else tokens.contiguous()
    neighbors = 0 if near is None else near.shape[1]
    dimensions = 0 if vectors is None else vectors.shape[1]
    # The other kinds of siblings need more registers: a thread holds half as many tokens of them.
    chunk = CHUNK if siblings == INDEPENDENT else max(CHUNK // 2, GROUP)
    block = min(max(GROUP, triton.next_power_of_2(vocab)), chunk)
    many = warps(CHUNK if block == chunk else block)
    with launchable(cond):
        _walk_tree[(batch,)](
            *p, drafts, children.contiguous(), None if draft_probs is None else draft_probs.contiguous(),
            accept_u.contiguous(), resample_u.contiguous(), near, vectors, known, *outputs, a, b,
            m, drafts.stride(0), 0 if draft_probs is None else draft_probs.shape[1], max_children, height, vocab,
            group, neighbors, dimensions, 0 if len(children) == 1 else (m + 1) * max_children,
            cond.shape[1], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, MODE=siblings,
            RULE=rule, NEAR=b > 0 and vectors is not None, NEIGHBORS=triton.next_power_of_2(max(neighbors, 1)),
            DIM=triton.next_power_of_2(max(dimensions, 1)), RANKS=triton.next_power_of_2(max_children),
            BLOCK=block, GROUP=GROUP, num_warps=many,
        )  # fmt: skip
    return outputs


@walk_tree_op.register_fake
def _(cond: Tensor, *rest: Tensor | int | float | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tokens, height = rest[4], rest[9]
    assert isinstance(tokens, Tensor) and isinstance(height, int)
    return empty_walk(tokens, height)


def empty_walk(tokens: Tensor, height: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tensors of a `Walked`, not initialized."""
    batch = tokens.shape[0]
    tokens_of, entries, path = (tokens.new_empty((batch, n)) for n in (height + 1, height + 1, height))
    return tokens_of, entries, path, tokens.new_empty((batch, 4 + 3 * height), dtype=torch.int32)
