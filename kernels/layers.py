"""Kernels 9 to 12: what lies between the matrix products of a layer.

`rotate_and_store` (of adjacent pairs, as in LlamaGen) and `rotate_halves_and_store` (of the halves of a head, as in
transformers) rotate queries and keys, and write keys and values to their cache slots; `swiglu` is the product of the
feed-forward part, `rms_norm` a norm. In torch these are ten to thirty launches per layer, and in a window of a few
tokens each takes less time than its launch. See `mmspec.vision.llamagen.fused_layers` and `mmspec.hf.fused_layers`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.specialization import kernel

BLOCK = 1024


def rotate_and_store_reference(
    qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """`rotate_and_store` in torch."""
    heads, head_dim = keys.shape[1], keys.shape[3]
    q, k, v = qkv.unflatten(-1, (3, heads, head_dim)).unbind(2)  # [R, W, heads, head_dim] each

    def rotated(x: Tensor) -> Tensor:
        swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return torch.addcmul(x * cos[:, :, None], swapped, sin[:, :, None]).to(x.dtype)

    rows = torch.arange(len(slots), device=slots.device)[:, None]
    keys[rows, :, slots], values[rows, :, slots] = rotated(k), v
    return rotated(q).contiguous()


@kernel
def _rotate_and_store(qkv, cos, sin, places, keys, values, out, width, heads, head_dim, capacity, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)  # r * W + w
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = heads * head_dim
    inside = lane < size
    own, partner = qkv + token * 3 * size + lane, qkv + token * 3 * size + (lane ^ 1)
    at = lane % head_dim
    c = tl.load(cos + token * head_dim + at, mask=inside, other=0.0)
    s = tl.load(sin + token * head_dim + at, mask=inside, other=0.0)
    q = tl.load(own, mask=inside, other=0.0).to(tl.float32) * c
    q += tl.load(partner, mask=inside, other=0.0).to(tl.float32) * s
    k = tl.load(own + size, mask=inside, other=0.0).to(tl.float32) * c
    k += tl.load(partner + size, mask=inside, other=0.0).to(tl.float32) * s
    v = tl.load(own + 2 * size, mask=inside, other=0.0)
    tl.store(out + token * size + lane, q.to(v.dtype), mask=inside)
    place = ((token // width) * heads + lane // head_dim) * capacity + tl.load(places + token)
    tl.store(keys + place * head_dim + at, k.to(v.dtype), mask=inside)
    tl.store(values + place * head_dim + at, v, mask=inside)


@operator("mmspec::rotate_and_store", mutates_args=("keys", "values"))
def rotate_and_store(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Rotates queries and keys in float32, and writes keys and values to the cache.

    Args:
        qkv: [R, W, 3 * heads * head_dim], contiguous; pairs of adjacent numbers of queries and keys are rotated.
        cos: float32 [R, W, head_dim].
        sin: float32 [R, W, head_dim], with the sign of each number of a pair.
        slots: int64 [R, W], the cache slots.
        keys: [R, heads, capacity, head_dim], contiguous; of the dtype of `qkv`. It is written to.
        values: As `keys`.

    Returns:
        The queries, [R, W, heads, head_dim].
    """
    if chosen(qkv) == "torch":
        return rotate_and_store_reference(qkv, cos, sin, slots, keys, values)
    out = _queries(qkv, keys)
    heads, capacity, head_dim = keys.shape[1:]
    grid = (slots.numel(), triton.cdiv(heads * head_dim, BLOCK))
    with launchable(qkv):
        _rotate_and_store[grid](
            qkv, cos.contiguous(), sin.contiguous(), slots.contiguous(), keys, values, out,
            slots.shape[1], heads, head_dim, capacity, BLOCK=BLOCK,
        )  # fmt: skip
    return out


@rotate_and_store.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return _queries(qkv, keys)


def _queries(qkv: Tensor, keys: Tensor) -> Tensor:
    return qkv.new_empty((*qkv.shape[:2], keys.shape[1], keys.shape[3]))


def rotate_halves_and_store_reference(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """`rotate_halves_and_store` in torch."""
    head_dim = keys.shape[3]

    def rotated(x: Tensor) -> Tensor:
        x = x.unflatten(-1, (-1, head_dim))
        first, second = x.chunk(2, dim=-1)
        return x * cos[:, :, None] + torch.cat([-second, first], dim=-1) * sin[:, :, None]

    rows = torch.arange(len(slots), device=slots.device)[:, None]
    keys[rows, :, slots], values[rows, :, slots] = rotated(k), v.unflatten(-1, (-1, head_dim))
    return rotated(q).contiguous()


@triton.jit
def _rotated_half(x, token, size, lane, c, s, inside, head_dim):
    """Numbers `lane` of a token's row of `size`, rotated; rounded in between, as the operators of torch round."""
    first = lane % head_dim < head_dim // 2
    partner = tl.where(first, lane + head_dim // 2, lane - head_dim // 2)
    own = tl.load(x + token * size + lane, mask=inside, other=0.0)
    other = tl.load(x + token * size + partner, mask=inside, other=0.0).to(tl.float32)
    straight = (own.to(tl.float32) * c).to(own.dtype).to(tl.float32)
    turned = (tl.where(first, -other, other) * s).to(own.dtype).to(tl.float32)
    return (straight + turned).to(own.dtype)


@kernel
def _rotate_halves_and_store(
    q, k, v, cos, sin, places, keys, values, out, width, heads, groups, head_dim, capacity, BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)  # r * W + w
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = lane % head_dim
    inside, stored = lane < heads * head_dim, lane < groups * head_dim
    c = tl.load(cos + token * head_dim + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + token * head_dim + at, mask=inside, other=0.0).to(tl.float32)
    turned = _rotated_half(q, token, heads * head_dim, lane, c, s, inside, head_dim)
    tl.store(out + token * heads * head_dim + lane, turned, mask=inside)
    turned = _rotated_half(k, token, groups * head_dim, lane, c, s, stored, head_dim)
    new = tl.load(v + token * groups * head_dim + lane, mask=stored, other=0.0)
    place = ((token // width) * groups + lane // head_dim) * capacity + tl.load(places + token)
    tl.store(keys + place * head_dim + at, turned, mask=stored)
    tl.store(values + place * head_dim + at, new, mask=stored)


@operator("mmspec::rotate_halves_and_store", mutates_args=("keys", "values"))
def rotate_halves_and_store(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Rotates queries and keys, and writes keys and values to the cache.

    Args:
        q: [R, W, heads * head_dim], contiguous; number i of a head is rotated with number i + head_dim / 2.
        k: [R, W, groups * head_dim], contiguous, with `groups` a divisor of `heads`.
        v: As `k`.
        cos: [R, W, head_dim].
        sin: [R, W, head_dim].
        slots: int64 [R, W], the cache slots.
        keys: [R, groups, capacity, head_dim], contiguous; of the dtype of `q`. It is written to.
        values: As `keys`.

    Returns:
        The queries, [R, W, heads, head_dim].
    """
    if chosen(q) == "torch":
        return rotate_halves_and_store_reference(q, k, v, cos, sin, slots, keys, values)
    groups, capacity, head_dim = keys.shape[1:]
    out = q.new_empty((*q.shape[:2], q.shape[2] // head_dim, head_dim))
    grid = (slots.numel(), triton.cdiv(q.shape[2], BLOCK))
    with launchable(q):
        _rotate_halves_and_store[grid](
            q, k, v, cos.contiguous(), sin.contiguous(), slots.contiguous(), keys, values, out,
            slots.shape[1], out.shape[2], groups, head_dim, capacity, BLOCK=BLOCK,
        )  # fmt: skip
    return out


@rotate_halves_and_store.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:2], q.shape[2] // keys.shape[3], keys.shape[3]))


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in torch, with the roundings of transformers."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


@kernel
def _rms_norm(x, weight, out, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    lane = tl.arange(0, BLOCK)
    own = tl.load(x + row + lane, mask=lane < size, other=0.0)
    wide = own.to(tl.float32)
    scaled = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)).to(own.dtype)
    factor = tl.load(weight + lane, mask=lane < size, other=0.0)
    tl.store(out + row + lane, (factor.to(tl.float32) * scaled.to(tl.float32)).to(own.dtype), mask=lane < size)


@operator("mmspec::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The root mean square norm of contiguous rows x [..., D], in float32, times `weight` [D] of the same dtype."""
    if chosen(x) == "torch":
        return rms_norm_reference(x, weight, eps)
    size = x.shape[-1]
    out = x.new_empty(x.shape)
    block = triton.next_power_of_2(size)
    with launchable(x):
        _rms_norm[(x.numel() // size,)](x, weight, out, size, eps, BLOCK=block, num_warps=max(1, min(16, block // 256)))
    return out


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape)


@kernel
def _swiglu(gate, up, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g, u = tl.load(gate + at, mask=at < count, other=0.0), tl.load(up + at, mask=at < count, other=0.0)
    wide = g.to(tl.float32)
    # Rounded in between, as the two operators of torch round.
    activated = (wide / (1 + tl.exp(-wide))).to(g.dtype)
    tl.store(out + at, (activated.to(tl.float32) * u.to(tl.float32)).to(g.dtype), mask=at < count)


@operator("mmspec::swiglu", mutates_args=())
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, for contiguous tensors of the same shape and dtype."""
    if chosen(gate) == "torch":
        return F.silu(gate) * up
    out = gate.new_empty(gate.shape)
    with launchable(gate):
        _swiglu[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, out, gate.numel(), BLOCK=BLOCK)
    return out


@swiglu.register_fake
def _(gate: Tensor, up: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)
