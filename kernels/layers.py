"""Kernels 9 and 10: what lies between the matrix products of a layer; see `mmspec.vision.llamagen.fused_layers`.

`rotate_and_store` rotates queries and keys, and writes keys and values to their cache slots; `swiglu` is the product of
the feed-forward part. In torch these are ten launches per layer, and in a window of a few tokens each takes less time
than its launch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable
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


@torch.library.custom_op("mmspec::rotate_and_store", mutates_args=("keys", "values"))
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


@kernel
def _swiglu(gate, up, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g, u = tl.load(gate + at, mask=at < count, other=0.0), tl.load(up + at, mask=at < count, other=0.0)
    wide = g.to(tl.float32)
    # Rounded in between, as the two operators of torch round.
    activated = (wide / (1 + tl.exp(-wide))).to(g.dtype)
    tl.store(out + at, (activated.to(tl.float32) * u.to(tl.float32)).to(g.dtype), mask=at < count)


@torch.library.custom_op("mmspec::swiglu", mutates_args=())
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
