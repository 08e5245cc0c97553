"""Kernel 11: SpecTr's test of several independent drafts, as in `mmspec.sampling.k_seq`.

One program per sequence follows the drafts. At each depth it searches for rho by reading p and q of one entry again and
again, from the cache: two halvings of the interval take one reading, of which three sums are kept.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.acceptance import CODES, acceptance, slot_order, slot_probs
from mmspec.kernels.backend import launchable, warps
from mmspec.kernels.inverse_cdf import GROUP, cdf_goal, mass, seek
from mmspec.kernels.rule import EXACT_RULE, KernelRule
from mmspec.kernels.softmax_stats import SoftmaxStats, quotient
from mmspec.kernels.specialization import kernel
from mmspec.kernels.tree import Walked, empty_walk, finish_walk

CHUNK = 4096
READINGS = tl.constexpr(12)  # of two halvings each, as many as the torch rule makes


def verify_drafts(
    p: SoftmaxStats,
    tokens: Tensor,
    draft_probs: Tensor,
    drafts: int,
    accept_u: Tensor,
    resample_u: Tensor,
    rule: KernelRule = EXACT_RULE,
) -> Walked:
    """Follows the drafts to the first position where all remaining ones are rejected, and samples the token there.

    The reference is `mmspec.sampling.k_seq.verify_drafts`. A kernel without an operator of torch: drafts of SpecTr are
    not part of compiled graphs.

    Args:
        p: The target distributions after the 1 + m entries, the root and the drafts depth by depth.
        tokens: int64 [B, m], the nodes.
        draft_probs: float32 [B, n, V], the distributions that the children of the first n entries were sampled from.
        drafts: The number of drafts, k; m is a multiple of it.
        accept_u: float32 [B, m] in [0, 1), the uniform random numbers of the nodes.
        resample_u: float32 [B, m / k + 1] in [0, 1), those of the depths.
        rule: The acceptance rule; slot i of its window is depth i.
    """
    cond, uncond, allowed, floats, ints = p.source()
    (batch, m), vocab = tokens.shape, cond.shape[-1]
    height = m // drafts
    outputs = empty_walk(tokens, height)
    neighbors = 0 if rule.near is None else rule.near.shape[1]
    dimensions = 0 if rule.vectors is None else rule.vectors.shape[1]
    block = min(max(GROUP, triton.next_power_of_2(vocab)), CHUNK)
    with launchable(cond):
        _verify_drafts[(batch,)](
            cond, uncond, allowed, floats, ints, tokens.contiguous(), draft_probs.contiguous(), accept_u.contiguous(),
            resample_u.contiguous(), rule.near, rule.vectors, rule.known, *outputs, rule.a, rule.b,
            m, draft_probs.shape[1], drafts, height, vocab, rule.group, neighbors, dimensions,
            cond.shape[1], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            RULE=CODES[rule.name], NEAR=rule.b > 0 and rule.vectors is not None,
            NEIGHBORS=triton.next_power_of_2(max(neighbors, 1)), DIM=triton.next_power_of_2(max(dimensions, 1)),
            RANKS=triton.next_power_of_2(drafts), BLOCK=block, GROUP=GROUP, num_warps=warps(2 * block),
        )  # fmt: skip
    return Walked(*outputs)


@triton.jit
def _row(q, columns, FLAGS: tl.constexpr):
    """The probabilities at `columns` of a row (its address and V) that is written out; there are no flags."""
    start, vocab = q
    return tl.load(start + columns, mask=(columns >= 0) & (columns < vocab), other=0.0)


@triton.jit
def _overlaps(p, q, first, second, third, vocab, FLAGS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """beta, the sum of min(q, p / rho), at three values of rho, float64; at most 1."""
    one, two, three = tl.zeros((), tl.float64), tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    for start in range(0, vocab, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        probs, drafted = slot_probs(p, columns, FLAGS), _row(q, columns, FLAGS)
        one += mass(tl.minimum(drafted, quotient(probs, first)), BLOCK, GROUP)
        two += mass(tl.minimum(drafted, quotient(probs, second)), BLOCK, GROUP)
        three += mass(tl.minimum(drafted, quotient(probs, third)), BLOCK, GROUP)
    return tl.minimum(one, 1.0), tl.minimum(two, 1.0), tl.minimum(three, 1.0)


@triton.jit
def _accepted(beta, count):
    """The probability that one of `count` drafts is accepted, 1 - (1 - beta)^count, float64."""
    none, tested = beta * 0 + 1.0, 0
    while tested < count:
        none *= 1 - beta
        tested += 1
    return 1 - none


@triton.jit
def _enough(beta, rho, count):
    """Whether rho is so large that no token is accepted more often than p says."""
    return _accepted(beta, count) <= rho.to(tl.float64) * beta + 1e-6


@triton.jit
def _smallest_rho(p, q, count, vocab, FLAGS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """`mmspec.sampling.k_seq.smallest_rho`, and beta there."""
    low = tl.full((), 1.0, tl.float32)
    high = low * count
    least, found, _ = _overlaps(p, q, low, high, high, vocab, FLAGS, BLOCK, GROUP)
    done = _enough(least, low, count)
    reading = 0
    while (reading < READINGS) & (done == 0):
        middle = (low + high) / 2
        left, right = (low + middle) / 2, (middle + high) / 2
        at_left, at_middle, at_right = _overlaps(p, q, left, middle, right, vocab, FLAGS, BLOCK, GROUP)
        fits = _enough(at_middle, middle, count)
        # The half of the interval that remains, and the middle of that half.
        low, high, found = tl.where(fits, low, middle), tl.where(fits, middle, high), tl.where(fits, at_middle, found)
        middle, at_middle = tl.where(fits, left, right), tl.where(fits, at_left, at_right)
        fits = _enough(at_middle, middle, count)
        low, high, found = tl.where(fits, low, middle), tl.where(fits, middle, high), tl.where(fits, at_middle, found)
        reading += 1
    return tl.where(done, 1.0, high), tl.where(done, least, found)


@triton.jit
def _rest(p, q, columns, rho, factor, FLAGS: tl.constexpr):
    """What is resampled after the drafts were rejected, unnormalized; p itself for a `factor` of 0."""
    probs = slot_probs(p, columns, FLAGS)
    least = tl.minimum(_row(q, columns, FLAGS), quotient(probs, rho))
    return tl.where(factor > 0, tl.maximum(probs - least * factor, 0.0), probs)


@kernel
def _verify_drafts(
    cond, uncond, allowed, floats, ints, tokens, draft_probs, accept_us, resample_us, near, vectors, known,
    out, entries, path, found, a, b, m, n, chains, height, vocab, group, neighbors, dimensions,
    slots, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
    RULE: tl.constexpr, NEAR: tl.constexpr, NEIGHBORS: tl.constexpr, DIM: tl.constexpr,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    FLAGS: tl.constexpr = (GUIDED, MASKED, UNIT)
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    rule = (near, vectors, known, a, b, group, neighbors, dimensions)
    row = tl.program_id(0).to(tl.int64)
    tokens += row * m
    accept_us += row * m
    draft_probs += row * n * vocab
    out += row * (height + 1)
    entries += row * (height + 1)
    path += row * height
    report = found + row * (4 + 3 * height)
    ids, lanes = tl.arange(0, RANKS), tl.arange(0, BLOCK)
    one = tl.zeros((1,), tl.int64)
    alive = (ids < chains).to(tl.int32)  # the drafts that begin with the accepted tokens
    entry = tl.zeros((), tl.int64)
    rho, factor = tl.full((), 1.0, tl.float32), tl.zeros((), tl.float32)
    depth, depths, going, broken = 0, 0, 1, 0
    tl.store(entries, entry)
    while (depth < height) & (going != 0):
        p = (source, row * (m + 1) + entry)
        q = (draft_probs + tl.minimum(entry, n - 1) * vocab, vocab)
        count = tl.sum(alive, 0)
        rho, beta = _smallest_rho(p, q, count, vocab, FLAGS, BLOCK, GROUP)
        excess = tl.zeros((), tl.float32)
        x = tl.zeros((), tl.int64)
        going, draft = 0, 0
        while (draft < chains) & (going == 0):
            if tl.max(tl.where(ids == draft, alive, 0), 0) != 0:
                node = depth * chains + draft
                x = tl.load(tokens + node)
                p_x = tl.sum(slot_probs(p, x + one, FLAGS), 0)
                q_x = tl.sum(_row(q, x + one, FLAGS), 0)
                broken = tl.where(q_x != q_x, 1, broken)
                chance = tl.div_rn(tl.div_rn(p_x, rho), q_x)
                if RULE != 0:
                    exact = tl.div_rn(p_x, q_x)
                    relaxed = acceptance(
                        p, q, x, exact, p_x, q_x, depth, rule, vocab,
                        slot_probs, _row, slot_order, FLAGS, FLAGS, RULE, NEAR, NEIGHBORS, DIM, BLOCK,
                    )  # fmt: skip
                    gap = tl.minimum(relaxed, 1.0) - tl.minimum(exact, 1.0)
                    chance = tl.minimum(chance, 1.0) + gap
                    excess += tl.abs(gap)
                if tl.load(accept_us + node) < chance:
                    going = 1
                    entry = tl.zeros((), tl.int64) + 1 + node
            draft += 1 - going
        tl.store(report + 3 + height + depth, excess.to(tl.int32, bitcast=True))
        depths += 1
        if going != 0:
            tl.store(out + depth, x)
            tl.store(entries + depth + 1, entry)
            tl.store(path + depth, entry)
            tl.store(report + 3 + depth, entry.to(tl.int32))
            tl.store(report + 3 + 2 * height + depth, x.to(tl.int32))
            others = tl.load(tokens + depth * chains + ids, mask=ids < chains, other=-1)
            alive = tl.where(others == x, alive, 0)
            depth += 1
        else:
            factor = (_accepted(beta, count) / tl.maximum(beta, 1.1754943508222875e-38)).to(tl.float32)
    p = (source, row * (m + 1) + entry)
    q = (draft_probs + tl.minimum(entry, n - 1) * vocab, vocab)
    total = tl.zeros((), tl.float64)
    stage = 0
    while (stage < 2) & (total <= 0):  # p itself, if nothing is left by rounding
        factor = tl.where(stage == 0, factor, 0.0)
        total = tl.zeros((), tl.float64)
        for start in range(0, vocab, BLOCK):
            total += mass(_rest(p, q, start + lanes, rho, factor, FLAGS), BLOCK, GROUP)
        stage += 1
    token = tl.full((), -1, tl.int32)
    if total > 0:
        goal = cdf_goal(tl.load(resample_us + row * (height + 1) + depth), total)
        below = tl.zeros((), tl.float64)
        for start in range(0, vocab, BLOCK):
            left = _rest(p, q, start + lanes, rho, factor, FLAGS)
            sampled = seek(left, goal - below, BLOCK, GROUP)
            token = tl.where((token < 0) & (sampled < BLOCK), start + sampled, token)
            below += mass(left, BLOCK, GROUP)
    finish_walk(out, entries, path, report, token, entry, depth, depths, height, broken, GROUP)
