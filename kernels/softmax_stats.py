"""Softmax statistics: a few numbers per slot from which, with the logits, every probability follows.

A slot is one position of one row's window. Its distribution is that of `mmspec.sampling.sampler.TokenSampler`:
guidance, forbidden tokens, temperature, top-k, top-p, softmax. After `mmspec.kernels.fused_sampler` has read the logits
of a slot, the probability of token v is

    z(v) = lerp(uncond(v), cond(v), scale) / temperature        -inf where v is forbidden
    p(v) = exp(z(v) - peak) / total                             if z(v) > floor, or z(v) = floor and v <= last; else 0

or, if `point` is not -1, 1 for that token and 0 for all others: greedy rows, and drafts that were not sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.specialization import kernel

SCALE, TEMPERATURE, FLOOR, PEAK, TOTAL = range(5)
LINE, KIND, LAST, POINT, BEST = range(5)
_BLOCK = 1024  # tokens of a program that writes a part of a slot


@dataclass(frozen=True)
class SoftmaxStats:
    """The distributions of some slots.

    Attributes:
        cond: [R, S, V], logits of any float type and any strides.
        uncond: [R, S, V], the unconditional logits, or None without guidance.
        allowed: bool [kinds, V], or None if every token is allowed.
        floats: float32 [B, W, 5], of each slot: guidance scale, temperature, floor, peak and total.
        ints: int32 [B, W, 5], of each slot: the line `r * S + s` of its logits [r, s], its kind, the last token at the
            floor, the point, and the most likely token.
    """

    cond: Tensor
    uncond: Tensor | None
    allowed: Tensor | None
    floats: Tensor
    ints: Tensor

    @property
    def shape(self) -> torch.Size:
        """(B, W, V)."""
        return torch.Size([*self.ints.shape[:-1], self.cond.shape[-1]])

    @property
    def device(self) -> torch.device:
        return self.cond.device

    def __getitem__(self, index: Any) -> SoftmaxStats:
        """The distributions of some of the slots, by an index of the axes B and W."""
        return replace(self, floats=self.floats[index], ints=self.ints[index])

    def view(self, *shape: int) -> SoftmaxStats:
        """The same slots with other axes in place of B and W."""
        return replace(self, floats=self.floats.reshape(*shape, 5), ints=self.ints.reshape(*shape, 5))

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The reference: all probabilities, [B, W, V] of a float type."""
        line = self.ints[..., LINE].long()
        row, slot = line // self.cond.shape[1], line % self.cond.shape[1]
        scale, temperature, floor, peak, total = self.floats[..., None].unbind(-2)
        uncond = None if self.uncond is None else self.uncond[row, slot]
        z = mix(self.cond[row, slot], uncond, self.allowed, scale, temperature, self.ints[..., KIND])
        columns = torch.arange(z.shape[-1], device=z.device)
        kept = (z > floor) | ((z == floor) & (columns <= self.ints[..., LAST, None]))
        p = torch.where(kept, (z.to(dtype) - peak).exp() / total, 0.0)
        point = self.ints[..., POINT, None]
        return torch.where(point >= 0, (columns == point).to(dtype), p)

    def source(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
        """The tensors that kernels read: `cond` and `uncond` with the same strides, the others contiguous."""
        cond, uncond = self.cond, self.uncond
        if uncond is not None and uncond.stride() != cond.stride():
            cond, uncond = cond.contiguous(), uncond.contiguous()
        allowed = None if self.allowed is None else self.allowed.contiguous()
        return cond, uncond, allowed, self.floats.contiguous(), self.ints.contiguous()


def point_mass_stats(like: SoftmaxStats, tokens: Tensor) -> SoftmaxStats:
    """The distributions of tokens int64 [B, W] that were not sampled: all mass on the token."""
    floats = torch.ones(*tokens.shape, 5, device=tokens.device)
    ints = torch.zeros(*tokens.shape, 5, dtype=torch.int32, device=tokens.device)
    ints[..., POINT] = tokens
    return replace(like, floats=floats, ints=ints)


def stats_of_probs(p: Tensor) -> SoftmaxStats:
    """The statistics of probabilities float [B, W, V]: their logits are log(p)."""
    batch, width, _ = p.shape
    floats = _floats_of_probs(p.device).repeat(batch, width, 1)
    ints = torch.zeros(batch, width, 5, dtype=torch.int32, device=p.device)
    ints[..., LINE] = torch.arange(batch * width, device=p.device).view(batch, width)
    ints[..., LAST], ints[..., POINT], ints[..., BEST] = p.shape[-1], -1, p.argmax(-1)
    return SoftmaxStats(p.log(), None, None, floats, ints)


@cache
def _floats_of_probs(device: torch.device) -> Tensor:
    """The floats of a slot whose logits are log(p)."""
    return torch.tensor([1.0, 1.0, -torch.inf, 0.0, 1.0], device=device)


def mix(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, scale: Tensor, temperature: Tensor, kind: Tensor
) -> Tensor:
    """The logits z, float32 [B, W, V]; `scale` and `temperature` are [B, W, 1], `kind` is [B, W]."""
    z = cond.float()
    if uncond is not None:
        mixed = torch.lerp(uncond.float(), z, scale).masked_fill_(z.isneginf(), -torch.inf)
        z = torch.where(scale == 1, z, mixed)  # see `TokenSampler`
    if allowed is not None:
        z = z.masked_fill(~allowed[kind.long()], -torch.inf)
    return z / temperature


@triton.jit
def quotient(a, b):
    """The numbers of the block a divided by the scalar b, rounded to nearest as by `tl.div_rn` where that is normal.

    A product with the reciprocal, corrected twice by its exact remainder (Markstein, 1990). `tl.div_rn` computes a
    reciprocal for each number instead, and branches where a is 0 or infinite.
    """
    inverse = tl.div_rn(tl.full((), 1.0, tl.float32), b) + tl.zeros_like(a)
    divisor = b + tl.zeros_like(a)
    first = a * inverse
    second = tl.fma(tl.fma(-first, divisor, a), inverse, first)
    third = tl.fma(tl.fma(-second, divisor, a), inverse, second)
    return tl.where(tl.abs(first) == float("inf"), first, third)


@triton.jit
def logits(
    source, line, kind, scale, temperature, columns,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, wanted=True,
):  # fmt: skip
    """The logits z of the tokens `columns` of one line, as in `mix`; -inf for columns outside the vocabulary.

    None is read unless `wanted`. That is a mask and no part of the address, so that loads stay as wide as they can be.

    A `source` is (cond, uncond, allowed, floats, ints, S, V, strides of row, slot and token) of a `SoftmaxStats`.
    """
    cond, uncond, allowed, _, _, slots, vocab, stride_row, stride_slot, stride_column = source
    inside = (columns >= 0) & (columns < vocab) & wanted
    base = (line // slots).to(tl.int64) * stride_row + (line % slots).to(tl.int64) * stride_slot
    # For a whole row, offsets in int64 would take at least as many registers again as the logits.
    at = columns if UNIT else columns.to(tl.int64) * stride_column
    z = tl.load(cond + base + at, mask=inside, other=float("-inf")).to(tl.float32)
    if GUIDED:
        free = tl.load(uncond + base + at, mask=inside, other=0.0).to(tl.float32)
        # Where the model itself forbids a token both logits are -inf, and their difference is NaN.
        never = z == float("-inf")
        # Fused explicitly: all kernels must compute the same bits, or a threshold found by one would fail in another.
        scale += tl.zeros_like(z)
        near = tl.abs(scale) < 0.5
        mixed = tl.fma(tl.where(near, scale, scale - 1), z - free, tl.where(near, free, z))
        z = tl.where(never | (scale == 1), z, mixed)
    if MASKED:
        ok = tl.load(allowed + kind.to(tl.int64) * vocab + columns, mask=inside, other=0)
        z = tl.where(ok != 0, z, float("-inf"))
    return quotient(z, temperature)


@triton.jit
def weights(z, columns, floor, last, peak):
    """Unnormalized probabilities of logits z."""
    kept = (z > floor) | ((z == floor) & (columns <= last))
    return tl.where(kept, tl.exp(z - peak), 0.0)


@triton.jit
def probabilities(source, slot, columns, GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr):
    """The probabilities of the tokens `columns` of slot `slot` (flat index), float32."""
    _, _, _, floats, ints, _, vocab, _, _, _ = source
    scale, temperature = tl.load(floats + slot * 5), tl.load(floats + slot * 5 + 1)
    floor, peak, total = tl.load(floats + slot * 5 + 2), tl.load(floats + slot * 5 + 3), tl.load(floats + slot * 5 + 4)
    line, kind = tl.load(ints + slot * 5), tl.load(ints + slot * 5 + 1)
    last, point = tl.load(ints + slot * 5 + 2), tl.load(ints + slot * 5 + 3)
    # A point mass needs no logits; its line may be that of another slot.
    z = logits(source, line, kind, scale, temperature, columns, GUIDED, MASKED, UNIT, point < 0)
    p = quotient(weights(z, columns, floor, last, peak), total)
    return tl.where(point < 0, p, tl.where(columns == point, 1.0, 0.0))


@kernel
def _at(
    cond, uncond, allowed, floats, ints, tokens, out, slots, vocab, stride_row, stride_slot, stride_column,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    slot = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens + slot) + tl.zeros((1,), tl.int64)
    tl.store(out + slot, tl.sum(probabilities(source, slot, token, GUIDED, MASKED, UNIT), 0))


@operator("mmspec::at", mutates_args=())
def at(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, tokens: Tensor
) -> Tensor:
    """The probability float32 [B, W] of one token int64 [B, W] of each slot of `SoftmaxStats.source`."""
    stats = SoftmaxStats(cond, uncond, allowed, floats, ints)
    if chosen(cond) == "torch":
        return stats.dense(torch.float64).gather(-1, tokens[..., None])[..., 0].float()
    out = cond.new_empty(tokens.shape, dtype=torch.float32)
    with launchable(cond):
        _at[(tokens.numel(),)](
            cond, uncond, allowed, floats, ints, tokens.contiguous(), out,
            cond.shape[1], cond.shape[2], *cond.stride(),
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, num_warps=1,
        )  # fmt: skip
    return out


@at.register_fake
def _(*tensors: Tensor) -> Tensor:
    return tensors[-1].new_empty(tensors[-1].shape, dtype=torch.float32)


@kernel
def _log_probs(
    cond, uncond, allowed, floats, ints, out, slots, vocab, stride_row, stride_slot, stride_column, most,
    GUIDED: tl.constexpr, MASKED: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    source = (cond, uncond, allowed, floats, ints, slots, vocab, stride_row, stride_slot, stride_column)
    slot = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = probabilities(source, slot, columns, GUIDED, MASKED, UNIT)
    tl.store(out + slot * most + columns, tl.log(p), mask=columns < most)


@operator("mmspec::log_probs", mutates_args=())
def log_probs(
    cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, more: int
) -> Tensor:
    """The logarithms of all probabilities of `SoftmaxStats.source`, float32 [B, W, V + more].

    Args:
        cond: Like the four after it, a field of `SoftmaxStats`.
        more: How many tokens follow those of the vocabulary, with -inf.
    """
    stats = SoftmaxStats(cond, uncond, allowed, floats, ints)
    if chosen(cond) == "torch":
        return torch.nn.functional.pad(stats.dense().log(), (0, more), value=-torch.inf)
    out = _log_probs_of(ints, cond, more)
    with launchable(cond):
        _log_probs[(ints.shape[:-1].numel(), triton.cdiv(out.shape[-1], _BLOCK))](
            cond, uncond, allowed, floats, ints, out, cond.shape[1], cond.shape[2], *cond.stride(), out.shape[-1],
            GUIDED=uncond is not None, MASKED=allowed is not None, UNIT=cond.stride(2) == 1, BLOCK=_BLOCK,
        )  # fmt: skip
    return out


@log_probs.register_fake
def _(cond: Tensor, uncond: Tensor | None, allowed: Tensor | None, floats: Tensor, ints: Tensor, more: int) -> Tensor:
    return _log_probs_of(ints, cond, more)


def _log_probs_of(ints: Tensor, cond: Tensor, more: int) -> Tensor:
    return cond.new_empty((*ints.shape[:-1], cond.shape[-1] + more), dtype=torch.float32)
