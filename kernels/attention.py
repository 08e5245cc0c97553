"""Attention of a few tokens per row to a long KV cache, split over its length (flash decoding, Dao et al. 2023).

At batch 1 a program per key head leaves most of a device idle, and each reads thousands of slots alone. Here several
programs read a part of the slots each, for all queries of a key head at once, and a second kernel joins their results.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, launches_early, operator

MOST_QUERIES = 64  # of a key head: tokens of a window, times the query heads that share it
_SLOTS = 64  # of which the slots of a part are a multiple
_SHORTEST = 128  # slots of a part
_IDLE = 8  # parts of the slots from which on the cache may be read twice
JOINED = 32  # parts that are read at once when they are joined; more would not fit into the registers of two warps


def splits_of(programs: int, end: int, processors: int) -> int:
    """Into how many parts the slots are split, so that each multiprocessor has about two programs.

    Args:
        programs: Rows times key heads.
        end: Slots that are read.
        processors: Multiprocessors of the device.
    """
    return max(1, min(-(-end // _SHORTEST), -(-2 * processors // programs)))


def slots_at_once(block: int, itemsize: int, hopper: bool) -> int:
    """The slots that a program reads at a time.

    Their tiles must fit into 99 KiB, the shared memory of small devices, and sums and products into the registers. The
    matrix products of an H100 read their operands from shared memory, which leaves room for larger tiles.

    Args:
        block: Width of a head, rounded up to a power of two.
        itemsize: Bytes per number.
        hopper: Whether the device is of compute capability 9.
    """
    if block * itemsize > 256:
        return 16
    if itemsize == 2:
        return 32 if block == 128 and not hopper else 64
    return 16 if block == 64 else 32


def can_attend(q: Tensor, keys: Tensor, mask: Tensor) -> bool:
    """Whether `attend` takes these tensors: few query heads per key head, heads of up to 512 bytes, an added mask."""
    few = q.shape[1] // keys.shape[1] <= MOST_QUERIES
    small = q.element_size() <= 4 and q.shape[-1] * q.element_size() <= 512
    added = mask.dtype == q.dtype == keys.dtype and mask.shape[1] == 1 and mask.shape[-1] == keys.shape[2]
    return few and small and added and q.stride(-1) == keys.stride(-1) == mask.stride(-1) == 1


def pays(q: Tensor, keys: Tensor, mask: Tensor) -> bool:
    """Whether `attend` takes less time than torch's backends.

    On an H100, in bfloat16, of 29 cases of 1 to 16 rows, 1 to 16 tokens and 384 to 4224 slots it took less time than
    cuDNN's kernel in 24, down to a fifth, and 1 to 13 % more in 5. Twice as many queries read the cache twice, which
    pays where few programs would leave the device idle: 0.6 to 0.9 of the time in 5 cases of 8 or more parts, 1.3 in
    one of fewer.
    """
    if not (q.is_cuda and can_attend(q, keys, mask)):
        return False
    reads = -(-q.shape[2] // _most_tokens(q, keys))
    return reads == 1 or (
        reads == 2 and splits_of(keys.shape[0] * keys.shape[1], keys.shape[2], _processors(q.device)) >= _IDLE
    )


def attend(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, splits: int | None = None,
    early: bool = False,
) -> Tensor:  # fmt: skip
    """Scaled dot-product attention, float32 inside.

    Args:
        q: [R, heads, W, D], of any strides but the last.
        keys: [R, key heads, end, D]; the key heads divide the heads. A slice of a longer cache.
        values: As `keys`.
        mask: [R or 1, 1, W or 1, end], added to the scores; no query may have only -inf.
        scale: Of the scores.
        splits: Parts of the slots; None for `splits_of`.
        early: Whether the kernels are launched while those before them run, where a device can. Beside the kernels of
            `mmspec.kernels.linear` this saves time; beside those of cuBLAS it cost an H100 up to 2 % of a step.

    Returns:
        [R, W, heads * D], of the dtype of `q`.
    """
    most = _most_tokens(q, keys)
    if q.shape[2] > most:
        mask = mask.expand(-1, -1, q.shape[2], -1)
        parts = zip(q.split(most, 2), mask.split(most, 2), strict=True)
        return torch.cat([attend(some, keys, values, own, scale, splits, early) for some, own in parts], dim=1)
    if splits is None:
        processors = _processors(q.device) if q.is_cuda else 1
        splits = splits_of(keys.shape[0] * keys.shape[1], keys.shape[2], processors)
    return attend_op(q, keys, values, mask, scale, splits, early)


def attend_reference(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`attend` by torch's own attention."""
    out = F.scaled_dot_product_attention(
        q, keys, values, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] > keys.shape[1]
    )
    return out.transpose(1, 2).flatten(2)


def _most_tokens(q: Tensor, keys: Tensor) -> int:
    """The tokens of a window that one program takes."""
    return MOST_QUERIES * keys.shape[1] // q.shape[1]


@cache
def _is_hopper(device: torch.device) -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] == 9


@cache
def _processors(device: torch.device) -> int:
    if not torch.cuda.is_available():  # a fake device, on which calls are traced
        return 132
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit(do_not_specialize=["end", "part", "width", "queries", "key_heads", "mask_row", "mask_width"])
def _attend_part(
    q, keys, values, mask, sums, tops, shares, scale, end, part, width, queries, key_heads,
    q_row, q_head, q_slot, k_row, k_head, k_slot, v_row, v_head, v_slot, mask_row, mask_width,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, SLOTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:  # see `mmspec.kernels.linear`
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, head = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    split, splits = tl.program_id(1), tl.num_programs(1)
    line = tl.arange(0, QUERIES)  # query head of the group * width + token
    of_group, token = line // width, line % width
    d = tl.arange(0, BLOCK_D)
    inside, group = line < queries, queries // width
    at = row.to(tl.int64) * q_row + (head * group + of_group).to(tl.int64) * q_head + token * q_slot
    asked = tl.load(q + at[:, None] + d[None, :], mask=inside[:, None] & (d < D)[None, :], other=0.0)
    k_base, v_base = keys + row.to(tl.int64) * k_row + head * k_head, values + row.to(tl.int64) * v_row + head * v_head
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    share = tl.zeros((QUERIES,), tl.float32)
    out = tl.zeros((QUERIES, BLOCK_D), tl.float32)
    first = split * part
    last = tl.minimum(first + part, end)
    for start in range(first, last, SLOTS):
        slot = start + tl.arange(0, SLOTS)
        there = (slot < last)[:, None] & (d < D)[None, :]
        key = tl.load(k_base + slot[:, None].to(tl.int64) * k_slot + d[None, :], mask=there, other=0.0)
        added = tl.load(
            mask + row * mask_row + token[:, None] * mask_width + slot[None, :],
            mask=inside[:, None] & (slot < last)[None, :], other=float("-inf"),
        )  # fmt: skip
        score = tl.dot(asked, tl.trans(key), input_precision="ieee") * scale + added.to(tl.float32)
        peak = tl.maximum(top, tl.max(score, 1))
        base = tl.where(peak == float("-inf"), 0.0, peak)  # where every slot so far is masked
        weight, kept = tl.exp(score - base[:, None]), tl.exp(top - base)
        share = share * kept + tl.sum(weight, 1)
        value = tl.load(v_base + slot[:, None].to(tl.int64) * v_slot + d[None, :], mask=there, other=0.0)
        out = out * kept[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = peak
    place = (tl.program_id(0).to(tl.int64) * splits + split) * QUERIES + line
    tl.store(tops + place, top)
    tl.store(shares + place, share)
    tl.store(sums + place[:, None] * BLOCK_D + d[None, :], out)


@triton.jit(do_not_specialize=["splits", "width", "key_heads"])
def _join_parts(
    sums, tops, shares, out, splits, width, group, key_heads,
    D: tl.constexpr, BLOCK_D: tl.constexpr, QUERIES: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program, line = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    top, share = float("-inf"), 0.0
    joined = tl.zeros((BLOCK_D,), tl.float32)
    for first in range(0, splits, SPLITS):
        split = first + tl.arange(0, SPLITS)
        place = (program.to(tl.int64) * splits + split) * QUERIES + line
        tops_here = tl.load(tops + place, mask=split < splits, other=float("-inf"))
        peak = tl.maximum(top, tl.max(tops_here, 0))
        base = tl.where(peak == float("-inf"), 0.0, peak)  # where every part so far is masked
        factor, kept = tl.exp(tops_here - base), tl.exp(top - base)
        share = share * kept + tl.sum(factor * tl.load(shares + place, mask=split < splits, other=0.0), 0)
        parts = tl.load(sums + place[:, None] * BLOCK_D + d[None, :], mask=(split < splits)[:, None], other=0.0)
        joined = joined * kept + tl.sum(parts * factor[:, None], 0)
        top = peak
    joined = joined / share
    row, head = program // key_heads, program % key_heads
    token, query_head = line % width, head * group + line // width
    there = out + ((row * width + token).to(tl.int64) * (key_heads * group) + query_head) * D + d
    tl.store(there, joined.to(out.dtype.element_ty), mask=d < D)


def _padded(q: Tensor, keys: Tensor) -> tuple[int, int]:
    """The width of a head and the queries of a key head, rounded up to what a tile of a product takes."""
    queries = q.shape[1] // keys.shape[1] * q.shape[2]
    return max(16, triton.next_power_of_2(q.shape[3])), max(16, triton.next_power_of_2(queries))


def _parts(end: int, splits: int) -> tuple[int, int]:
    """The slots of a part, and how many parts there are; fewer than `splits` where the slots of a part are rounded."""
    part = -(-end // (splits * _SLOTS)) * _SLOTS
    return part, -(-end // part)


def bytes_of_parts(q: Tensor, keys: Tensor, splits: int) -> int:
    """The bytes that the parts write and the kernel that joins them reads."""
    block_d, queries = _padded(q, keys)
    return keys.shape[0] * keys.shape[1] * _parts(keys.shape[2], splits)[1] * queries * (block_d + 2) * 4


@operator("mmspec::attend", mutates_args=())
def attend_op(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, splits: int, early: bool) -> Tensor:
    """`attend`, with the number of parts."""
    if chosen(q) == "torch":
        return attend_reference(q, keys, values, mask, scale)
    rows, heads, width, d = q.shape
    key_heads, end = keys.shape[1:3]
    group = heads // key_heads
    block_d, queries = _padded(q, keys)
    part, splits = _parts(end, splits)
    mask = mask.expand(rows, 1, width, end)
    places = rows * key_heads * splits * queries
    slots = slots_at_once(block_d, q.element_size(), q.is_cuda and _is_hopper(q.device))
    sums = torch.empty(places * block_d, dtype=torch.float32, device=q.device)
    tops, shares = torch.empty(2, places, dtype=torch.float32, device=q.device)
    out = q.new_empty(rows, width, heads * d)
    early = early and launches_early(q.device)
    options = {"launch_pdl": True} if early else {}
    with launchable(q):
        _attend_part[(rows * key_heads, splits)](
            q, keys, values, mask, sums, tops, shares, scale, end, part, width, group * width, key_heads,
            *q.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
            mask.stride(0), mask.stride(2),
            D=d, BLOCK_D=block_d, QUERIES=queries, SLOTS=slots, EARLY=early, num_warps=4, **options,
        )  # fmt: skip
        _join_parts[(rows * key_heads, group * width)](
            sums, tops, shares, out, splits, width, group, key_heads,
            D=d, BLOCK_D=block_d, QUERIES=queries, SPLITS=min(triton.next_power_of_2(splits), JOINED),
            EARLY=early, num_warps=2, **options,
        )  # fmt: skip
    return out


@attend_op.register_fake
def _(q: Tensor, *rest: Tensor | float) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1] * q.shape[3])
