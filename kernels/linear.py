"""Linear layers of a few rows, which are reads of their weights (GEMV and skinny products).

A product of a few rows takes as long as its weights take to arrive, if all of them are on their way at once. Each
program computes a few columns of the output for all rows: every warp reads a part of the input's width, and the sums of
the parts are added at the end in one order, so that a row's results are the same from run to run and whatever other
rows there are. The norm before a product and the bias, SwiGLU or residual after it are part of the same kernel, as are
the rotation of queries and keys and their way to the KV cache.

On devices of compute capability 9 and more, kernels are launched while those before them still run (programmatic
dependent launch): the weights, which no kernel of a step writes, are read ahead, and only then does a kernel wait for
its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, launches_early, operator
from mmspec.kernels.layers import rms_norm_reference, rotate_and_store_reference, rotate_halves_and_store_reference

MOST_ROWS = 16  # tokens of a call, of all rows of the batch
ROWS = 16  # of a tile of the tensor cores
WIDEST = 1280  # input of the layers of a model, see `pays`


@dataclass(frozen=True)
class Tiling:
    """How a product is split.

    Attributes:
        columns: Of the output, per program.
        parts: Of the width of the input, which different warps read; as many as warps.
        depth: Numbers of a part that a warp reads at a time.
        held: Chunks of parts * depth numbers that are held in registers from before the inputs are there.
        stages: Of the loop over the remaining chunks.
        ahead: Whether the remaining chunks are brought to the L2 cache before the inputs are there.
    """

    columns: int
    parts: int
    depth: int
    held: int
    stages: int
    ahead: bool = True

    def chunks(self, size: int) -> int:
        """The chunks of an input of a width."""
        return -(-size // (self.parts * self.depth))


@triton.jit
def _places(chunk, PARTS: tl.constexpr, DEPTH: tl.constexpr):
    """Where in the width of the input the numbers of a chunk are, [PARTS, 1, DEPTH]."""
    part, within = tl.arange(0, PARTS)[:, None, None], tl.arange(0, DEPTH)[None, None, :]
    return (chunk * PARTS + part) * DEPTH + within


@triton.jit
def _weights(weight, row, chunk, SIZE: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr):
    """One chunk of rows of a weight, [PARTS, rows, DEPTH]."""
    k = _places(chunk, PARTS, DEPTH)
    at = weight + row[None, :, None].to(tl.int64) * SIZE + k
    if SIZE % (PARTS * DEPTH) == 0:
        return tl.load(at)
    return tl.load(at, mask=k < SIZE, other=0.0)


@triton.jit
def _inputs(x, m, chunk, SIZE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr):
    """One chunk of the input, [PARTS, ROWS, DEPTH]."""
    k, line = _places(chunk, PARTS, DEPTH), tl.arange(0, ROWS)[None, :, None]
    return tl.load(x + line * SIZE + k, mask=(line < m) & (k < SIZE), other=0.0)


@triton.jit
def _factors(norm, chunk, SIZE: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr):
    """One chunk of the weight of a norm, the same for all ROWS; in as many rows as the input it has the same layout."""
    k = tl.broadcast_to(_places(chunk, PARTS, DEPTH), (PARTS, ROWS, DEPTH))
    return tl.load(norm + k, mask=k < SIZE, other=0.0)


@triton.jit
def _scaled(tile, factor):
    """The input times the weight of the norm, and the sums of the squares of the input, [PARTS, ROWS]."""
    wide = tile.to(tl.float32)
    return (wide * factor.to(tl.float32)).to(tile.dtype), tl.sum(wide * wide, 2)


@triton.jit
def _opaque(tile):
    """The tile itself. A compiler does not move what is done with it ahead of this place."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tile], dtype=tile.dtype, is_pure=False, pack=2)


@triton.jit
def _prefetch(weight, row, SIZE: tl.constexpr, FIRST: tl.constexpr):
    """Brings rows of a weight of 16-bit numbers into the L2 cache, line by line, from a number of each row on."""
    for first in tl.static_range(FIRST, SIZE, 16 * 64):
        line = tl.minimum(first + tl.arange(0, 16) * 64, SIZE - 1)
        at = (weight + row[:, None].to(tl.int64) * SIZE + line[None, :]).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _begin(
    norm, weight, second, row, SIZE: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, EARLY: tl.constexpr,
    ROWS: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, HELD: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Reads the first chunks of the weights, and waits until the inputs are there."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    held, others, factors = (), (), ()
    for i in tl.static_range(HELD):
        held = held + (_weights(weight, row, i, SIZE, PARTS, DEPTH),)  # type: ignore[assignment]
        if GATED:
            others = others + (_weights(second, row, i, SIZE, PARTS, DEPTH),)  # type: ignore[assignment]
    for i in tl.static_range(HELD):
        if NORM:
            factors = factors + (_factors(norm, i, SIZE, ROWS, PARTS, DEPTH),)  # type: ignore[assignment]
    if EARLY:
        if AHEAD:
            _prefetch(weight, row, SIZE, HELD * PARTS * DEPTH)
            if GATED:
                _prefetch(second, row, SIZE, HELD * PARTS * DEPTH)
        tl.extra.cuda.gdc_wait()
    return held, others, factors


@triton.jit
def _products(
    x, norm, weight, second, row, held, others, factors, m, eps,
    SIZE: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, EARLY: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr, HELD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The products of the input with rows of one weight, or of two, [ROWS, COLUMNS] each."""
    out = tl.zeros((PARTS, ROWS, COLUMNS), tl.float32)
    other = tl.zeros((PARTS, ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((PARTS, ROWS), tl.float32)
    tiles = ()
    for i in tl.static_range(HELD):
        tiles = tiles + (_inputs(x, m, i, SIZE, ROWS, PARTS, DEPTH),)  # type: ignore[assignment]
    for i in tl.static_range(HELD):
        # Without this the first tile would go through shared memory before the next one is asked for.
        tile, w = (_opaque(tiles[i]), _opaque(held[i])) if EARLY else (tiles[i], held[i])
        if NORM:
            tile, more = _scaled(tile, factors[i])
            squares += more
        out = tl.dot(tile, tl.permute(w, (0, 2, 1)), out, input_precision="ieee")
        if GATED:
            w = _opaque(others[i]) if EARLY else others[i]
            other = tl.dot(tile, tl.permute(w, (0, 2, 1)), other, input_precision="ieee")
    if HELD * PARTS * DEPTH < SIZE:
        for i in tl.range(HELD, (SIZE + PARTS * DEPTH - 1) // (PARTS * DEPTH), num_stages=STAGES):
            tile = _inputs(x, m, i, SIZE, ROWS, PARTS, DEPTH)
            w = _weights(weight, row, i, SIZE, PARTS, DEPTH)
            if NORM:
                tile, more = _scaled(tile, _factors(norm, i, SIZE, ROWS, PARTS, DEPTH))
                squares += more
            out = tl.dot(tile, tl.permute(w, (0, 2, 1)), out, input_precision="ieee")
            if GATED:
                w = _weights(second, row, i, SIZE, PARTS, DEPTH)
                other = tl.dot(tile, tl.permute(w, (0, 2, 1)), other, input_precision="ieee")
    total, up = tl.sum(out, 0), tl.sum(other, 0)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, 0) / SIZE + eps)[:, None]
        total, up = total * scale, up * scale
    return total, up


@triton.jit(do_not_specialize=["m", "eps"])
def _linear(
    x, norm, weight, second, bias, out, m, n, eps,
    SIZE: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    EARLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr,
    HELD: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.minimum(column, n - 1)
    held, others, factors = _begin(norm, weight, second, row, SIZE, NORM, GATED, EARLY, ROWS, PARTS, DEPTH, HELD, AHEAD)
    line = tl.arange(0, ROWS)[:, None]
    inside = (line < m) & (column < n)[None, :]
    at = out + line * n + column[None, :]
    dtype = out.dtype.element_ty
    more = tl.zeros((ROWS, COLUMNS), tl.float32)
    if ADD:
        more += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        more += tl.load(bias + row).to(tl.float32)[None, :]
    total, up = _products(
        x, norm, weight, second, row, held, others, factors, m, eps,
        SIZE, NORM, GATED, EARLY, ROWS, COLUMNS, PARTS, DEPTH, HELD, STAGES,
    )  # fmt: skip
    if GATED:
        gate = total.to(dtype).to(tl.float32)
        activated = (gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32)
        total = activated * up.to(dtype).to(tl.float32)
    tl.store(at, (total + more).to(dtype), mask=inside)


@triton.jit
def _rotated(own, partner, c, s, HALVES: tl.constexpr, dtype: tl.constexpr):
    """One number of each pair, rotated; of halves of a head with the roundings of transformers."""
    if HALVES:
        return (own * c).to(dtype).to(tl.float32) + (partner * s).to(dtype).to(tl.float32)
    return own * c + partner * s


@triton.jit(do_not_specialize=["m", "eps", "width", "heads", "groups", "capacity"])
def _qkv(
    x, norm, q_weight, k_weight, v_weight, q_bias, k_bias, v_bias, cos, sin, places, out, keys, values,
    m, eps, width, heads, groups, capacity,
    SIZE: tl.constexpr, HEAD: tl.constexpr, HALVES: tl.constexpr, BIAS: tl.constexpr, EARLY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, DEPTH: tl.constexpr,
    HELD: tl.constexpr, STAGES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    first, n = tl.program_id(0), heads * HEAD
    q_blocks, k_blocks = tl.cdiv(heads * HEAD, COLUMNS), tl.cdiv(groups * HEAD, COLUMNS)
    kind = 0  # queries, keys or values
    weight, bias = q_weight, q_bias
    if first >= q_blocks:
        first, n = first - q_blocks, groups * HEAD
        if first < k_blocks:
            kind = 1
            weight, bias = k_weight, k_bias
        else:
            first -= k_blocks
            kind = 2
            weight, bias = v_weight, v_bias
    # The two numbers of a pair are next to each other in a tile.
    pair = first * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    lane = tl.arange(0, COLUMNS)
    all_pairs = first * (COLUMNS // 2) + lane // 2
    if HALVES:
        a = pair // (HEAD // 2) * HEAD + pair % (HEAD // 2)
        b = a + HEAD // 2
        column = all_pairs // (HEAD // 2) * HEAD + all_pairs % (HEAD // 2) + lane % 2 * (HEAD // 2)
    else:
        a = 2 * pair
        b = a + 1
        column = 2 * all_pairs + lane % 2
    row = tl.minimum(column, n - 1)
    held, others, factors = _begin(norm, weight, weight, row, SIZE, True, False, EARLY, ROWS, PARTS, DEPTH, HELD, AHEAD)
    line = tl.arange(0, ROWS)
    there = line < m
    inside = there[:, None] & (a < n)[None, :]
    turn_a, turn_b = line[:, None] * HEAD + (a % HEAD)[None, :], line[:, None] * HEAD + (b % HEAD)[None, :]
    cos_a = tl.load(cos + turn_a, mask=inside, other=0.0).to(tl.float32)
    cos_b = tl.load(cos + turn_b, mask=inside, other=0.0).to(tl.float32)
    sin_a = tl.load(sin + turn_a, mask=inside, other=0.0).to(tl.float32)
    sin_b = tl.load(sin + turn_b, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(places + line, mask=there, other=0)
    total, _ = _products(
        x, norm, weight, weight, row, held, others, factors, m, eps,
        SIZE, True, False, EARLY, ROWS, COLUMNS, PARTS, DEPTH, HELD, STAGES,
    )  # fmt: skip
    if BIAS:
        total += tl.load(bias + row).to(tl.float32)[None, :]
    dtype = out.dtype.element_ty
    one, two = tl.split(tl.reshape(total.to(dtype).to(tl.float32), (ROWS, COLUMNS // 2, 2)))
    if kind < 2:
        sign = -1.0 if HALVES else 1.0
        turned = _rotated(one, two, cos_a, sign * sin_a, HALVES, dtype)
        two = _rotated(two, one, cos_b, sin_b, HALVES, dtype)
        one = turned
    if kind == 0:
        query = out + line[:, None].to(tl.int64) * n
        tl.store(query + a[None, :], one.to(dtype), mask=inside)
        tl.store(query + b[None, :], two.to(dtype), mask=inside)
    else:
        store = values
        if kind == 1:
            store = keys
        place = (line // width * groups)[:, None] + (a // HEAD)[None, :]
        stored = store + (place.to(tl.int64) * capacity + slot[:, None]) * HEAD
        tl.store(stored + (a % HEAD)[None, :], one.to(dtype), mask=inside)
        tl.store(stored + (b % HEAD)[None, :], two.to(dtype), mask=inside)


def tiling_of(size: int, columns: int, gated: bool) -> Tiling:
    """How a product is split.

    Args:
        size: The width of the input.
        columns: Of the output, of each weight.
        gated: Whether two weights are read.
    """
    # On an H100 the fastest of five to eight for LlamaGen-XL (1280 and 3584); for smaller ones there was no comparison.
    if gated and size <= 768:
        return Tiling(8, 8, 32, 3, 3)
    if gated:
        return Tiling(8, 4, 64, 2, 3) if columns <= 4096 else Tiling(16, 8, 32, 2, 3)
    return Tiling(16, 8, 32, 8, 1) if size <= 2048 else Tiling(8, 8, 64, 4, 2)


def pays(x: Tensor, *weights: Tensor) -> bool:
    """Whether layers of inputs [R, W, D] with these weights take less time with the kernels of this file.

    On an H100 captured steps of 2 rows took 26 % less time than with cuBLAS in LlamaGen-B (D = 768) and 10 to 17 % less
    in LlamaGen-XL (D = 1280), those of 1 row 7 to 10 % less in CosyVoice 2 (D = 896). Wider models and windows of more
    tokens took more. Devices without early launches were not measured, and take cuBLAS.
    """
    if x.is_cuda and not launches_early(x.device):
        return False
    return can_multiply(x, *weights) and x.shape[-1] <= WIDEST


def can_multiply(x: Tensor, *weights: Tensor) -> bool:
    """Whether the kernels take inputs [R, W, D] and weights: few rows, bfloat16, in memory as they are read."""
    few = x.shape[0] * x.shape[1] <= MOST_ROWS and x.dtype == torch.bfloat16
    return few and all(
        w.is_contiguous() and w.dtype == x.dtype and w.shape[1] % 64 == w.storage_offset() % 8 == 0 for w in weights
    )


def add_linear_reference(h: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """`add_linear` in torch."""
    h += F.linear(x, weight, bias)


def swiglu_linear_reference(x: Tensor, norm: Tensor, eps: float, gate: Tensor, up: Tensor) -> Tensor:
    """`swiglu_linear` in torch."""
    normed = rms_norm_reference(x, norm, eps)
    return F.silu(F.linear(normed, gate)) * F.linear(normed, up)


def qkv_reference(
    x: Tensor, norm: Tensor, eps: float, weights: list[Tensor], biases: list[Tensor], cos: Tensor, sin: Tensor,
    slots: Tensor, keys: Tensor, values: Tensor, halves: bool,
) -> Tensor:  # fmt: skip
    """`qkv` in torch."""
    normed = rms_norm_reference(x, norm, eps)
    q, k, v = (F.linear(normed, w, biases[i] if biases else None) for i, w in enumerate(weights))
    if halves:
        return rotate_halves_and_store_reference(q, k, v, cos, sin, slots, keys, values)
    return rotate_and_store_reference(torch.cat([q, k, v], dim=-1), cos, sin, slots, keys, values)


@operator("mmspec::add_linear", mutates_args=("h",))
def add_linear(h: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Adds linear(x) to h in place.

    Args:
        h: [R, W, N], contiguous.
        x: [R, W, D].
        weight: [N, D], contiguous.
        bias: [N], or None.
    """
    if chosen(x) == "torch":
        add_linear_reference(h, x, weight, bias)
        return
    _launch(x, weight, weight, h, bias=bias, add=True)


@operator("mmspec::swiglu_linear", mutates_args=())
def swiglu_linear(x: Tensor, norm: Tensor, eps: float, gate: Tensor, up: Tensor) -> Tensor:
    """silu(normed @ gate.T) * (normed @ up.T) of the root mean square norm of x.

    Args:
        x: [R, W, D].
        norm: [D], the weight of the norm.
        eps: Of the norm.
        gate: [N, D], contiguous.
        up: As `gate`.

    Returns:
        [R, W, N].
    """
    if chosen(x) == "torch":
        return swiglu_linear_reference(x, norm, eps, gate, up)
    out = x.new_empty((*x.shape[:2], len(gate)))
    _launch(x, gate, up, out, norm=norm, eps=eps)
    return out


@swiglu_linear.register_fake
def _(x: Tensor, norm: Tensor, eps: float, gate: Tensor, up: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:2], len(gate)))


@operator("mmspec::qkv", mutates_args=("keys", "values"))
def qkv(
    x: Tensor, norm: Tensor, eps: float, weights: list[Tensor], biases: list[Tensor], cos: Tensor, sin: Tensor,
    slots: Tensor, keys: Tensor, values: Tensor, halves: bool,
) -> Tensor:  # fmt: skip
    """Queries, keys and values of the root mean square norm of x, rotated; keys and values go to the cache.

    Args:
        x: [R, W, D].
        norm: [D], the weight of the norm.
        eps: Of the norm.
        weights: Of queries [heads * head_dim, D], keys and values [groups * head_dim, D], contiguous.
        biases: Of the same; empty for none.
        cos: [R, W, head_dim].
        sin: As `cos`; with the sign of each number of a pair unless `halves`.
        slots: int64 [R, W], the cache slots.
        keys: [R, groups, capacity, head_dim], contiguous; of the dtype of `x`. It is written to.
        values: As `keys`.
        halves: Whether number i of a head is rotated with number i + head_dim / 2; else pairs are adjacent.

    Returns:
        The queries, [R, W, heads, head_dim].
    """
    if chosen(x) == "torch":
        return qkv_reference(x, norm, eps, weights, biases, cos, sin, slots, keys, values, halves)
    groups, capacity, head_dim = keys.shape[1:]
    heads, size, m = len(weights[0]) // head_dim, x.shape[-1], slots.numel()
    out = x.new_empty((*x.shape[:2], heads, head_dim))
    tiling = tiling_of(size, (heads + 2 * groups) * head_dim, False)
    blocks = -(-heads * head_dim // tiling.columns) + 2 * -(-groups * head_dim // tiling.columns)
    early = launches_early(x.device)
    with launchable(x):
        _qkv[(blocks,)](
            x.contiguous(), norm, *weights, *(biases or weights), cos.contiguous(), sin.contiguous(),
            slots.contiguous(), out, keys, values, m, eps, slots.shape[1], heads, groups, capacity,
            SIZE=size, HEAD=head_dim, HALVES=halves, BIAS=bool(biases), EARLY=early, ROWS=ROWS,
            **constants(tiling, size, early),
        )  # fmt: skip
    return out


@qkv.register_fake
def _(
    x: Tensor, norm: Tensor, eps: float, weights: list[Tensor], biases: list[Tensor], cos: Tensor, sin: Tensor,
    slots: Tensor, keys: Tensor, values: Tensor, halves: bool,
) -> Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:2], len(weights[0]) // keys.shape[3], keys.shape[3]))


def _launch(
    x: Tensor, weight: Tensor, second: Tensor, out: Tensor, norm: Tensor | None = None, eps: float = 0.0,
    bias: Tensor | None = None, add: bool = False,
) -> None:  # fmt: skip
    size, m, n, gated = x.shape[-1], x.shape[0] * x.shape[1], len(weight), second is not weight
    tiling, early = tiling_of(size, n, gated), launches_early(x.device)
    with launchable(x):
        _linear[(-(-n // tiling.columns),)](
            x.contiguous(), weight if norm is None else norm, weight, second, weight if bias is None else bias, out,
            m, n, eps, SIZE=size, NORM=norm is not None, GATED=gated, BIAS=bias is not None, ADD=add, EARLY=early,
            ROWS=ROWS, **constants(tiling, size, early),
        )  # fmt: skip


def constants(tiling: Tiling, size: int, early: bool) -> dict[str, Any]:
    """The constants of a launch that depend on how the product is split."""
    held = min(tiling.held, tiling.chunks(size))
    found = {
        "COLUMNS": tiling.columns, "PARTS": tiling.parts, "DEPTH": tiling.depth, "HELD": held, "STAGES": tiling.stages,
        "AHEAD": early and tiling.ahead and held < tiling.chunks(size), "num_warps": tiling.parts,
    }  # fmt: skip
    return found | ({"launch_pdl": True} if early else {})
