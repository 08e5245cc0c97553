"""Kernel 1: one look through the logits of every slot.

Each program serves one slot. It mixes guidance in, drops forbidden tokens, divides by the temperature, finds the top-k
and top-p thresholds by bisection over the bits of the logits, and draws a token. Up to 32768 tokens stay in registers
meanwhile, so that memory is read once; longer rows come from the cache in later passes. What it leaves after is 40
bytes per slot (`SoftmaxStats`), a token, and the probability of the slot's draft.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, warps
from mmspec.kernels.inverse_cdf import GROUP, aim, draw_reference, mass, seek
from mmspec.kernels.philox import gumbel_reference, gumbels
from mmspec.kernels.softmax_stats import SoftmaxStats, logits, mix, weights

WHOLE = 32768  # tokens that a program can hold in registers
CHUNK = 8192


class Settings(NamedTuple):
    """How tokens are drawn.

    Attributes:
        scale: float32 [B, W], the guidance scale of each slot.
        heat: float32 [B], the temperature; 0 is greedy.
        top_k: int32 [B], 0 keeps all.
        top_p: float32 [B], 1 keeps all; None where no row asks for it.
        kind: int32 [B, W], or None where every token is allowed.
        allowed: bool [kinds, V], or None where every token is allowed.
    """

    scale: Tensor
    heat: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    kind: Tensor | None
    allowed: Tensor | None


class FusedSamples(NamedTuple):
    """What was found.

    Attributes:
        stats: The distributions.
        tokens: int64 [B, W], drawn from them; -1 where a distribution has no mass, or is not a number.
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
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
) -> FusedSamples:
    """Looks through logits [B, W, V].

    Args:
        cond: Of any float type and any strides; a slice of a larger vocabulary is fine.
        uncond: Of any float type and any strides; a slice of a larger vocabulary is fine.
        settings: How tokens are drawn.
        u: float32 [B, W] in [0, 1), what tokens are drawn with; unused where there are seeds.
        drafts: int64 [B, W], the draft of each slot, -1 for none.
        seeds: int64 [B]. Where given, tokens are drawn by the Gumbel-max trick with the noise of these rows and
            positions, which is that of `mmspec.sampling.rng.CounterRNG.gumbel`.
        positions: int64 [B, W], given with `seeds`.
    """
    if uncond is not None and uncond.stride() != cond.stride():
        cond, uncond = cond.contiguous(), uncond.contiguous()
    floats, ints, tokens, chance = rows(cond, uncond, *settings, u, drafts, seeds, positions)
    return FusedSamples(SoftmaxStats(cond, uncond, settings.allowed, floats, ints), tokens, chance)


def rows_reference(
    cond: Tensor,
    uncond: Tensor | None,
    scale: Tensor,
    heat: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    kind: Tensor | None,
    allowed: Tensor | None,
    u: Tensor,
    drafts: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `rows` gives, in torch: by sorting, in float64, and with every probability written out."""
    batch, width, vocab = cond.shape
    kinds = torch.zeros_like(scale, dtype=torch.int32) if kind is None else kind
    warm = torch.where(heat == 0, 1.0, heat)[:, None, None].expand(batch, width, 1)
    z = mix(cond, uncond, allowed, scale[..., None], warm, kinds)
    z = torch.where(z == 0, 0.0, z)  # no negative zeros
    best = z.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax(-1, keepdim=True)
    peak = z.gather(-1, best)
    ordered, order = z.sort(dim=-1, descending=True, stable=True)
    greedy = (heat == 0)[:, None, None].expand_as(peak)
    top_k = torch.zeros_like(heat, dtype=torch.int32) if top_k is None else top_k
    top_p = torch.ones_like(heat) if top_p is None else top_p
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
    if seeds is None or positions is None:
        tokens = draw_reference(w, u)
    else:
        noise = gumbel_reference(seeds[:, None], positions, vocab)
        tokens = ((w / total).log().float() + noise).argmax(-1)
    tokens = torch.where(bad, -1, torch.where(greedy, best, tokens[..., None]))[..., 0]
    point = torch.where(greedy & ~bad, best, -1)
    line = torch.arange(batch * width, device=z.device).view(batch, width, 1)
    chance = torch.zeros_like(scale)
    if drafts is not None:
        p = torch.where(point >= 0, (columns == point).double(), w / total)
        chance = torch.where(drafts < 0, 0.0, p.gather(-1, drafts.clamp(min=0)[..., None])[..., 0]).float()
    return (
        torch.cat([scale[..., None], warm, floor, peak, torch.where(bad, torch.nan, total).float()], dim=-1),
        torch.cat([line, kinds[..., None], last, point, best], dim=-1).int(),
        tokens,
        chance.masked_fill(bad[..., 0], torch.nan),
    )


@triton.jit
def _key(z):
    """A whole number that orders as z does."""
    bits = tl.where(z == 0, 0.0, z).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _from_key(key):
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _tile(
    held, columns, source, line, kind, scale, heat,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The logits of the next tokens: those held in registers where they are all, else read again."""
    if WHOLE:
        return held
    return logits(source, line, kind, scale, heat, columns, GUIDED, MASKED, UNIT)


@triton.jit
def _rows(
    cond, uncond, scales, heats, top_ks, top_ps, kinds, allowed, us, drafts, seeds, positions,
    floats, ints, tokens, chances, width, vocab, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, TOP_K: tl.constexpr, TOP_P: tl.constexpr,
    DRAFTED: tl.constexpr, GUMBEL: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    slot = line.to(tl.int64)
    row = line // width
    scale, heat = tl.load(scales + slot), tl.load(heats + row)
    greedy = heat == 0
    heat = tl.where(greedy, 1.0, heat)
    kind = 0
    if MASKED:
        kind = tl.load(kinds + slot)
    lanes = tl.arange(0, BLOCK)
    source = (cond, uncond, allowed, floats, ints, width, vocab, stride_row, stride_slot, stride_column)
    held = logits(source, line, kind, scale, heat, lanes, GUIDED, MASKED, UNIT)

    # The likeliest token. NaN would be lost in a maximum, so it is counted.
    peak, best, wrong = float("-inf"), 0, 0
    for start in range(0, vocab, BLOCK):
        z = _tile(held, start + lanes, source, line, kind, scale, heat, GUIDED, MASKED, UNIT, WHOLE)
        wrong += tl.sum((z != z).to(tl.int32), 0)
        z = tl.where(z == z, z, float("-inf"))
        top = tl.max(z, 0)
        best = tl.where(top > peak, start + tl.argmax(z, 0), best)
        peak = tl.maximum(peak, top)
    bad = (wrong > 0) | (peak == float("inf")) | (peak == float("-inf"))

    # Top-k: the largest key that k tokens reach. Three pivots a step, counted in one sum of 20-bit fields.
    k = tl.zeros((), tl.int64)
    if TOP_K:
        k += tl.load(top_ks + row)
    low = _key(tl.full((), float("-inf"), tl.float32))
    if (k > 0) & (k < vocab) & (bad == 0) & (greedy == 0):
        high = _key(peak) + 1
        while high - low > 1:
            step = (high - low + 3) // 4
            one, two, three = low + step, tl.minimum(low + 2 * step, high), tl.minimum(low + 3 * step, high)
            counts = tl.zeros((), tl.int64)
            for start in range(0, vocab, BLOCK):
                z = _tile(held, start + lanes, source, line, kind, scale, heat, GUIDED, MASKED, UNIT, WHOLE)
                key = _key(z)
                fields = (key >= one).to(tl.int64) + ((key >= two).to(tl.int64) << 20)
                counts += tl.sum(fields + ((key >= three).to(tl.int64) << 40), 0)
            first, second, third = counts & 0xFFFFF, (counts >> 20) & 0xFFFFF, counts >> 40
            base = low
            low = tl.where(third >= k, three, tl.where(second >= k, two, tl.where(first >= k, one, base)))
            high = tl.where(first < k, one, tl.where(second < k, two, tl.where(third < k, three, high)))
    floor, last = _from_key(low), vocab

    # Top-p: the smallest key above which less than this share of the mass lies.
    total = tl.zeros((), tl.float64)
    for start in range(0, vocab, BLOCK):
        z = _tile(held, start + lanes, source, line, kind, scale, heat, GUIDED, MASKED, UNIT, WHOLE)
        total += mass(weights(z, start + lanes, floor, last, peak), BLOCK, GROUP)
    share = 1.0
    if TOP_P:
        share = tl.load(top_ps + row)
    if (share < 1) & (bad == 0) & (greedy == 0):
        goal = share.to(tl.float64) * total  # type: ignore[attr-defined]
        low, high = low - 1, _key(peak)
        above = tl.zeros((), tl.float64)
        while high - low > 1:
            middle = low + (high - low) // 2
            over = tl.zeros((), tl.float64)
            for start in range(0, vocab, BLOCK):
                z = _tile(held, start + lanes, source, line, kind, scale, heat, GUIDED, MASKED, UNIT, WHOLE)
                over += mass(tl.where(_key(z) > middle, tl.exp(z - peak), 0.0), BLOCK, GROUP)
            above = tl.where(over < goal, over, above)
            high = tl.where(over < goal, middle, high)
            low = tl.where(over < goal, low, middle)
        floor = _from_key(high)
        # Of equal tokens at the threshold the first ones stay, as many as the share needs.
        each = tl.exp(floor - peak).to(tl.float64)
        wanted = tl.maximum(tl.ceil((goal - above) / tl.maximum(each, 1e-300)), 1.0)
        seen = tl.zeros((), tl.int32)
        last, total = 0, above
        for start in range(0, vocab, BLOCK):
            z = _tile(held, start + lanes, source, line, kind, scale, heat, GUIDED, MASKED, UNIT, WHOLE)
            tie = (z == floor).to(tl.int32)
            stays = (tie > 0) & ((seen + tl.cumsum(tie, 0)).to(tl.float64) <= wanted)
            last = tl.maximum(last, tl.max(tl.where(stays, start + lanes, 0), 0))
            total += each * tl.sum(stays.to(tl.int32), 0).to(tl.float64)
            seen += tl.sum(tie, 0)

    token = vocab
    if GUMBEL:
        seed, position = tl.load(seeds + row), tl.load(positions + slot)
        most = float("-inf")
        for start in range(0, vocab, BLOCK):
            z = _tile(held, start + lanes, source, line, kind, scale, heat, GUIDED, MASKED, UNIT, WHOLE)
            p = weights(z, start + lanes, floor, last, peak) / total.to(tl.float32)
            noise = gumbels(seed, position, start + lanes)
            score = tl.where(p > 0, tl.log(tl.where(p > 0, p, 1.0)) + noise, float("-inf"))
            top = tl.max(score, 0)
            token = tl.where(top > most, start + tl.argmax(score, 0), token)
            most = tl.maximum(most, top)
    else:
        goal = aim(tl.load(us + slot), total)
        below = tl.zeros((), tl.float64)
        for start in range(0, vocab, BLOCK):
            z = _tile(held, start + lanes, source, line, kind, scale, heat, GUIDED, MASKED, UNIT, WHOLE)
            w = weights(z, start + lanes, floor, last, peak)
            found = seek(w, goal - below, BLOCK, GROUP)
            token = tl.where((token == vocab) & (found < BLOCK), start + found, token)
            below += mass(w, BLOCK, GROUP)

    point = tl.where(greedy & (bad == 0), best, -1)
    share = total.to(tl.float32)
    share = tl.where(bad, float("nan"), share)
    tl.store(floats + slot * 5, scale)
    tl.store(floats + slot * 5 + 1, heat)
    tl.store(floats + slot * 5 + 2, floor)
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
        draft = tl.load(drafts + slot) + tl.zeros((1,), tl.int64)
        z = logits(source, line, kind, scale, heat, draft, GUIDED, MASKED, UNIT)
        drawn = tl.div_rn(tl.sum(weights(z, draft, floor, last, peak), 0), share)
        pointed = tl.where(tl.max(draft, 0) == point, 1.0, 0.0)
        chance = tl.where(point < 0, drawn, pointed)
    tl.store(chances + slot, tl.where(bad, float("nan"), chance))


@torch.library.custom_op("mmspec::rows", mutates_args=())
def rows(
    cond: Tensor,
    uncond: Tensor | None,
    scale: Tensor,
    heat: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    kind: Tensor | None,
    allowed: Tensor | None,
    u: Tensor,
    drafts: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`fused_sample`, from and to plain tensors: `floats`, `ints`, `tokens`, `chance`. Both sides have the same strides."""
    arguments = (cond, uncond, scale, heat, top_k, top_p, kind, allowed, u, drafts, seeds, positions)
    if chosen(cond) == "torch":
        return rows_reference(*arguments)
    batch, width, vocab = cond.shape
    floats, ints, tokens, chance = _outputs(cond)
    whole = vocab <= WHOLE
    block = max(GROUP, triton.next_power_of_2(vocab)) if whole else CHUNK
    rest = [None if t is None else t.contiguous() for t in arguments[2:]]
    with launchable(cond):
        _rows[(batch * width,)](
            cond, uncond, *rest, floats, ints, tokens, chance, width, vocab, *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1,
            TOP_K=top_k is not None, TOP_P=top_p is not None, DRAFTED=drafts is not None, GUMBEL=seeds is not None,
            WHOLE=whole, BLOCK=block, GROUP=GROUP, num_warps=warps(block),
        )  # fmt: skip
    return floats, ints, tokens, chance


@rows.register_fake
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
