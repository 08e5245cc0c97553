"""Kernel 1, the fused sampler: guidance, forbidden tokens, temperature, top-k, top-p and a sample in one pass.

Each program handles one slot. It mixes guidance in, masks forbidden tokens, divides by the temperature, finds the top-k
and top-p thresholds (`mmspec.kernels.thresholds`), and samples a token. Up to 16384 logits stay in registers, so that
memory is read once; longer rows are read again from the cache in each pass. Of the weights only the sums of groups are
kept; the group of the sample is read again. The output is 40 bytes per slot (`SoftmaxStats`), a token, and the
probability of the slot's draft.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator, warps
from mmspec.kernels.inverse_cdf import (
    GROUP,
    cdf_goal,
    group_sums,
    place,
    sample_reference,
    seek_group,
    seek_lane,
)
from mmspec.kernels.softmax_stats import SoftmaxStats, logits, mix, quotient, weights
from mmspec.kernels.specialization import kernel
from mmspec.kernels.thresholds import from_key, join_moments, join_sums, key_of, search, span, tile

WHOLE = 16384  # logits that a program can hold in registers
CHUNK = 8192


class Settings(NamedTuple):
    """Sampling parameters as tensors.

    Attributes:
        scale: float32 [B, W], the guidance scale of each slot.
        temperature: float32 [B]; 0 is greedy.
        top_k: int32 [B], 0 keeps all; None if no row uses it.
        top_p: float32 [B], 1 keeps all; None if no row uses it.
        kind: int32 [B, W], the kind of each slot, or None if every token is allowed.
        allowed: bool [kinds, V], the tokens that each kind allows, or None if every token is allowed.
    """

    scale: Tensor
    temperature: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    kind: Tensor | None
    allowed: Tensor | None


class FusedSamples(NamedTuple):
    """The output of `fused_sample`.

    Attributes:
        stats: The distributions.
        tokens: int64 [B, W], one sample of each; -1 where a distribution has no mass or contains NaN.
        chance: float32 [B, W], the probability of each slot's draft.
    """

    stats: SoftmaxStats
    tokens: Tensor
    chance: Tensor


def fused_sample(
    cond: Tensor,
    uncond: Tensor | None,
    settings: Settings,
    u: Tensor,
    drafts: Tensor | None = None,
) -> FusedSamples:
    """Samples a token for each slot of logits, and computes the statistics of its distribution.

    Args:
        cond: [B, W, V], of any float type and any strides, such as a slice of a larger vocabulary.
        uncond: [B, W, V], likewise, or None without guidance.
        settings: The sampling parameters.
        u: float32 [B, W] in [0, 1), the uniform random numbers of the samples.
        drafts: int64 [B, n], n <= W, the drafts of the first slots, of any stride between rows; -1 for none.
    """
    if uncond is not None and uncond.stride() != cond.stride():
        cond, uncond = cond.contiguous(), uncond.contiguous()
    floats, ints, tokens, chance = fused_sample_op(cond, uncond, *settings, u, drafts)
    return FusedSamples(SoftmaxStats(cond, uncond, settings.allowed, floats, ints), tokens, chance)


def fused_sample_reference(
    cond: Tensor,
    uncond: Tensor | None,
    scale: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    kind: Tensor | None,
    allowed: Tensor | None,
    u: Tensor,
    drafts: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`fused_sample_op` in torch: by sorting, in float64, and with every probability written out."""
    batch, width, vocab = cond.shape
    kinds = torch.zeros_like(scale, dtype=torch.int32) if kind is None else kind
    divisor = torch.where(temperature == 0, 1.0, temperature)[:, None, None].expand(batch, width, 1)
    z = mix(cond, uncond, allowed, scale[..., None], divisor, kinds)
    z = torch.where(z == 0, 0.0, z)  # no negative zeros
    best = z.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax(-1, keepdim=True)
    peak = z.gather(-1, best)
    ordered, order = z.sort(dim=-1, descending=True, stable=True)
    greedy = (temperature == 0)[:, None, None].expand_as(peak)
    top_k = torch.zeros_like(temperature, dtype=torch.int32) if top_k is None else top_k
    top_p = torch.ones_like(temperature) if top_p is None else top_p
    k = top_k.long()[:, None, None].expand_as(peak)
    floor = ordered.gather(-1, k.clamp(1, vocab) - 1)
    floor = torch.where((k == 0) | (k >= vocab) | greedy, -torch.inf, floor)
    mass = torch.where(ordered >= floor, (ordered.double() - peak).exp(), 0.0)
    before = mass.cumsum(-1) - mass
    nucleus = (before < top_p.double()[:, None, None] * mass.sum(-1, keepdim=True)).sum(-1, keepdim=True).clamp(min=1)
    cut = (top_p < 1)[:, None, None] & ~greedy
    floor = torch.where(cut, ordered.gather(-1, nucleus - 1), floor)
    last = torch.where(cut, order.gather(-1, nucleus - 1), vocab)
    columns = torch.arange(vocab, device=z.device)
    kept = (z > floor) | ((z == floor) & (columns <= last))
    w = torch.where(kept, (z.double() - peak).exp(), 0.0)
    total = w.sum(-1, keepdim=True)
    bad = z.isnan().any(-1, keepdim=True) | ~peak.isfinite()
    tokens = torch.where(bad, -1, torch.where(greedy, best, sample_reference(w, u)[..., None]))[..., 0]
    point = torch.where(greedy & ~bad, best, -1)
    line = torch.arange(batch * width, device=z.device).view(batch, width, 1)
    chance = torch.zeros_like(scale)
    if drafts is not None:
        p = torch.where(point >= 0, (columns == point).double(), w / total)
        drafts = torch.nn.functional.pad(drafts, (0, width - drafts.shape[1]), value=-1)
        chance = torch.where(drafts < 0, 0.0, p.gather(-1, drafts.clamp(min=0)[..., None])[..., 0]).float()
    return (
        torch.cat([scale[..., None], divisor, floor, peak, torch.where(bad, torch.nan, total).float()], dim=-1),
        torch.cat([line, kinds[..., None], last, point, best], dim=-1).int(),
        tokens,
        chance.masked_fill(bad[..., 0], torch.nan),
    )


@kernel
def _fused_sample(
    cond, uncond, scales, temperatures, top_ks, top_ps, kinds, allowed, us, drafts,
    floats, ints, tokens, chances, width, vocab, scales_row, kinds_row, us_row, drafts_row, drafted,
    stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr,
    DRAFTED: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    WHOLE: tl.constexpr = CHUNKS == 1
    line = tl.program_id(0)
    slot = line.to(tl.int64)
    row, at = line // width, line % width
    scale = tl.load(scales + row.to(tl.int64) * scales_row + at)
    temperature = tl.load(temperatures + row)
    greedy = temperature == 0
    temperature = tl.where(greedy, 1.0, temperature)
    kind = 0
    if MASKED:
        kind = tl.load(kinds + row.to(tl.int64) * kinds_row + at)
    lanes = tl.arange(0, BLOCK)
    source = (cond, uncond, allowed, floats, ints, width, vocab, stride_row, stride_slot, stride_column)
    held = logits(source, line, kind, scale, temperature, lanes, GUIDED, MASKED, UNIT)

    # The most likely token. A maximum drops NaN; a sum of all weights does not.
    peak, best = float("-inf"), vocab
    count, first, second = tl.zeros((), tl.float32), tl.zeros((), tl.float32), tl.zeros((), tl.float32)
    for start in range(0, BLOCK if WHOLE else vocab, BLOCK):
        z = tile(held, start + lanes, source, line, kind, scale, temperature, GUIDED, MASKED, UNIT, WHOLE)
        if TOP_K:
            some = z > float("-inf")
            known = tl.where(some, z, 0.0)
            top, ones, sum_one, sum_two = tl.reduce((z, some.to(tl.float32), known, known * known), 0, join_moments)
            count, first, second = count + ones, first + sum_one, second + sum_two
        else:
            top = tl.max(z, 0)
        found = tl.min(tl.where(z == top, start + lanes, vocab), 0)
        best = tl.where((top > peak) | (best == vocab), found, best)
        peak = tl.maximum(peak, top)
    best = tl.where(best == vocab, 0, best)
    finite = (peak > float("-inf")) & (peak < float("inf"))

    # Top-k: the largest key that k tokens reach.
    k = tl.zeros((), tl.int32)
    if TOP_K:
        k += tl.load(top_ks + row)
    low = key_of(tl.full((), float("-inf"), tl.float32))
    if TOP_K:
        goal = k.to(tl.float32)
        if (k > 0) & (k < vocab) & finite & (greedy == 0) & (goal <= count):
            mean = first / count
            deviation = tl.sqrt(tl.maximum(second / count - mean * mean, 0.0))
            low = search(
                held, source, line, kind, scale, temperature, low + 1, key_of(peak) + 1, count, goal, mean, deviation,
                peak, False, GUIDED, MASKED, UNIT, WHOLE, BLOCK,
            )  # fmt: skip
    floor, last = from_key(low), vocab

    # The kept mass. NaN is not below the floor.
    sums = tl.zeros((CHUNKS * (BLOCK // GROUP),), tl.float64)
    for start in range(0, BLOCK if WHOLE else vocab, BLOCK):
        z = tile(held, start + lanes, source, line, kind, scale, temperature, GUIDED, MASKED, UNIT, WHOLE)
        w = tl.exp(z - peak)
        if TOP_K:
            w = tl.where(z < floor, 0.0, w)
        sums += place(group_sums(w, BLOCK, GROUP), start, BLOCK, GROUP, CHUNKS)
    total = tl.sum(sums, 0)
    bad = total != total

    # Top-p: the smallest key above which less than this share of the mass lies.
    if TOP_P:
        share = tl.load(top_ps + row)
        if (share < 1) & (bad == 0) & (greedy == 0):
            enough = tl.maximum(share.to(tl.float64) * total, 1e-300)
            # Tokens 104 below the peak weigh nothing.
            low, high = tl.maximum(low, key_of(peak - 104)), key_of(peak) + 1
            mass_of, first, second = total.to(tl.float32), tl.zeros((), tl.float32), tl.zeros((), tl.float32)
            for start in range(0, BLOCK if WHOLE else vocab, BLOCK):
                z = tile(held, start + lanes, source, line, kind, scale, temperature, GUIDED, MASKED, UNIT, WHOLE)
                below = tl.where(z >= from_key(low), z - peak, 0.0)
                w = tl.exp(below) * below
                sum_one, sum_two = tl.reduce((w, w * below), 0, join_sums)
                first, second = first + sum_one, second + sum_two
            mean = first / mass_of
            deviation = tl.sqrt(tl.maximum(second / mass_of - mean * mean, 0.0))
            one = search(
                held, source, line, kind, scale, temperature, low, high, mass_of, enough.to(tl.float32), peak + mean,
                deviation, peak, True, GUIDED, MASKED, UNIT, WHOLE, BLOCK,
            )  # fmt: skip
            # Rounding may have misled the search. Sums in a fixed order, which never grow with the pivot, decide: as a
            # rule two of them, at the token found and above it.
            two = one + 1
            above = tl.zeros((), tl.float64)
            while span(low, high) > 1:
                first_mass, second_mass = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
                for start in range(0, BLOCK if WHOLE else vocab, BLOCK):
                    z = tile(held, start + lanes, source, line, kind, scale, temperature, GUIDED, MASKED, UNIT, WHOLE)
                    w = tl.exp(z - tl.maximum(peak, from_key(low)))
                    parts = (
                        group_sums(tl.where(z >= from_key(one), w, 0.0), BLOCK, GROUP),
                        group_sums(tl.where(z >= from_key(two), w, 0.0), BLOCK, GROUP),
                    )  # fmt: skip
                    more, most = tl.reduce(parts, 0, join_sums)
                    first_mass, second_mass = first_mass + more, second_mass + most
                if second_mass >= enough:
                    low = two
                elif first_mass >= enough:
                    low = one
                if first_mass < enough:
                    high, above = one, first_mass
                elif second_mass < enough:
                    high, above = two, second_mass
                third = tl.maximum(span(low, high) // 3, 1).to(tl.int32, bitcast=True)
                one, two = tl.minimum(low + third, high - third), tl.maximum(low + third, high - third)
            floor = from_key(low)
            # Of the tokens that tie at the threshold, the first ones stay, as many as the share needs.
            each = tl.exp(floor - peak).to(tl.float64)
            wanted = tl.maximum(tl.ceil((enough - above) / tl.maximum(each, 1e-300)), 1.0)
            ties = tl.zeros((CHUNKS * (BLOCK // GROUP),), tl.float64)
            for start in range(0, BLOCK if WHOLE else vocab, BLOCK):
                z = tile(held, start + lanes, source, line, kind, scale, temperature, GUIDED, MASKED, UNIT, WHOLE)
                some = group_sums(tl.where(z == floor, 1.0, 0.0), BLOCK, GROUP)
                ties += place(some, start, BLOCK, GROUP, CHUNKS)
            wanted = tl.minimum(wanted, tl.sum(ties, 0))
            total = above + each * wanted
            group, base = seek_group(ties, wanted - 0.5, CHUNKS * (BLOCK // GROUP))
            columns = group * GROUP + tl.arange(0, GROUP)
            near = logits(source, line, kind, scale, temperature, columns, GUIDED, MASKED, UNIT)
            last = group * GROUP + seek_lane(tl.where(near == floor, 1.0, 0.0), base, wanted - 0.5, GROUP)
            sums = tl.zeros((CHUNKS * (BLOCK // GROUP),), tl.float64)
            for start in range(0, BLOCK if WHOLE else vocab, BLOCK):
                z = tile(held, start + lanes, source, line, kind, scale, temperature, GUIDED, MASKED, UNIT, WHOLE)
                w = weights(z, start + lanes, floor, last, peak)
                sums += place(group_sums(w, BLOCK, GROUP), start, BLOCK, GROUP, CHUNKS)

    goal = cdf_goal(tl.load(us + row.to(tl.int64) * us_row + at), total)
    group, base = seek_group(sums, goal, CHUNKS * (BLOCK // GROUP))
    columns = group * GROUP + tl.arange(0, GROUP)
    z = logits(source, line, kind, scale, temperature, columns, GUIDED, MASKED, UNIT)
    token = group * GROUP + seek_lane(weights(z, columns, floor, last, peak), base, goal, GROUP)

    point = tl.where(greedy & (bad == 0), best, -1)
    share = total.to(tl.float32)
    share = tl.where(bad, float("nan"), share)
    tl.store(floats + slot * 5, scale)
    tl.store(floats + slot * 5 + 1, temperature)
    tl.store(floats + slot * 5 + 2, tl.where(bad, float("-inf"), floor))
    tl.store(floats + slot * 5 + 3, peak)
    tl.store(floats + slot * 5 + 4, share)
    tl.store(ints + slot * 5, line)
    tl.store(ints + slot * 5 + 1, kind)
    tl.store(ints + slot * 5 + 2, last)
    tl.store(ints + slot * 5 + 3, point)
    tl.store(ints + slot * 5 + 4, best)
    tl.store(tokens + slot, tl.where(bad, -1, tl.where(greedy, best, token)).to(tl.int64))
    chance = 0.0
    if DRAFTED:
        draft = tl.load(drafts + row.to(tl.int64) * drafts_row + at, mask=at < drafted, other=-1)
        draft += tl.zeros((1,), tl.int64)
        z = logits(source, line, kind, scale, temperature, draft, GUIDED, MASKED, UNIT)
        sampled = tl.max(quotient(weights(z, draft, floor, last, peak), share), 0)
        greedy_p = tl.where(tl.max(draft, 0) == point, 1.0, 0.0)
        chance = tl.where(point < 0, sampled, greedy_p)
    tl.store(chances + slot, tl.where(bad, float("nan"), chance))


@operator("mmspec::fused_sample", mutates_args=())
def fused_sample_op(
    cond: Tensor,
    uncond: Tensor | None,
    scale: Tensor,
    temperature: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    kind: Tensor | None,
    allowed: Tensor | None,
    u: Tensor,
    drafts: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`fused_sample` with plain tensors: `floats`, `ints`, `tokens`, `chance`. Both logits have the same strides."""
    arguments = (cond, uncond, scale, temperature, top_k, top_p, kind, allowed, u, drafts)
    if chosen(cond) == "torch":
        return fused_sample_reference(*arguments)
    batch, width, vocab = cond.shape
    floats, ints, tokens, chance = _outputs(cond)
    block, many, registers = launch_shape(vocab, top_k is not None, top_p is not None)
    chunks = triton.next_power_of_2(triton.cdiv(vocab, block))
    by_slot = [None if t is None else _rows_of(t) for t in (scale, kind, u)]
    rows = [0 if t is None else t.stride(0) for t in (*by_slot, drafts)]
    by_row = [None if t is None else t.contiguous() for t in (temperature, top_k, top_p, allowed)]
    drafted = 0 if drafts is None else drafts.shape[1]
    with launchable(cond):
        _fused_sample[(batch * width,)](
            cond, uncond, by_slot[0], *by_row[:3], by_slot[1], by_row[3], by_slot[2], drafts,
            floats, ints, tokens, chance, width, vocab, *rows, drafted, *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            TOP_K=top_k is not None, TOP_P=top_p is not None, DRAFTED=drafts is not None,
            CHUNKS=chunks, BLOCK=block, GROUP=GROUP, num_warps=many, maxnreg=registers,
        )  # fmt: skip
    return floats, ints, tokens, chance


def _rows_of(t: Tensor) -> Tensor:
    """Numbers of slots [B, W], those of a row next to each other: a slot of a window is not copied."""
    return t if t.shape[1] == 1 or t.stride(1) == 1 else t.contiguous()


def launch_shape(vocab: int, top_k: bool, top_p: bool) -> tuple[int, int, int | None]:
    """The logits of a tile, the warps of a program, and the most registers of a thread (None: as many as it takes).

    A thread holds 32 logits or more, so that two programs share a multiprocessor: while one reads memory
    or adds up over its warps, the other one computes. Top-p needs twice the registers.
    """
    if vocab > WHOLE:
        return CHUNK, warps(CHUNK), None
    block = max(GROUP, triton.next_power_of_2(vocab))
    if top_p:
        return block, warps(block // 2), 128
    if top_k:
        return block, warps(block // 4), 128
    return block, warps(block // 2), None


@fused_sample_op.register_fake
def _(cond: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(cond)


def _outputs(cond: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = cond.shape[:2]
    return (
        cond.new_empty((*shape, 5), dtype=torch.float32),
        cond.new_empty((*shape, 5), dtype=torch.int32),
        cond.new_empty(shape, dtype=torch.int64),
        cond.new_empty(shape, dtype=torch.float32),
    )
