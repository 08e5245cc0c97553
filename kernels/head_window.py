"""Kernel 20: what a call of a draft head does around its attention: its mask, and its keys and values into the cache.

The W tokens that a call reads lie in slots one after another, which begin elsewhere in each row. With guidance the
unconditional rows follow the conditional ones and read the same slots, so that R is B or 2 B.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mmspec.kernels.backend import chosen, launchable, operator
from mmspec.kernels.specialization import kernel

BLOCK = 256


@kernel
def _attention_bias(
    starts, sees, out, starts_row, shift, recent, batch, width, end, nodes, sees_row, sees_entry,
    TREE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64)
    row, entry = line // width % batch, line % width
    slots = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    latest = tl.load(starts + row * starts_row) + shift
    if TREE:
        visible = (slots <= latest) & (slots > latest - recent)
        node = slots - latest - 1
        inside = (node >= 0) & (node < nodes)
        visible |= tl.load(sees + row * sees_row + entry * sees_entry + node, mask=inside, other=0) != 0
    else:
        visible = (slots <= latest + entry) & (slots > latest + entry - recent)
    tl.store(out + line * end + slots, tl.where(visible, 0.0, float("-inf")), mask=slots < end)


@kernel
def _store_window(
    keys, values, k, v, starts, starts_row, shift, batch, width, heads, cache_row, cache_head, cache_slot,
    k_row, k_head, k_slot, v_row, v_head, v_slot, size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0).to(tl.int64)
    head, token, row = line % heads, line // heads % width, line // (heads * width)
    lanes = tl.arange(0, BLOCK)
    slot = tl.load(starts + row % batch * starts_row) + shift + token
    there = row * cache_row + head * cache_head + slot * cache_slot + lanes
    key = tl.load(k + row * k_row + head * k_head + token * k_slot + lanes, mask=lanes < size)
    tl.store(keys + there, key, mask=lanes < size)
    value = tl.load(v + row * v_row + head * v_head + token * v_slot + lanes, mask=lanes < size)
    tl.store(values + there, value, mask=lanes < size)


@operator("mmspec::attention_bias", mutates_args=())
def attention_bias(
    starts: Tensor, shift: int, sees: Tensor | None, rows: int, width: int, end: int, dtype: torch.dtype, recent: int
) -> Tensor:
    """Numbers to add to attention scores, [R, 1, W, end]: 0 for slots that a token attends to, else minus infinity.

    Args:
        starts: int64 [B].
        shift: A token attends to the slots up to `starts + shift`, and to as many further ones as tokens precede it; or
            to those of the nodes of a tree that it sees.
        sees: bool [B or 1, W, n], the nodes of a tree that each entry sees, in the n slots from `starts + shift + 1`
            on, of any stride but the last; None for a window.
        rows: R, a multiple of B.
        width: W.
        end: The number of slots that are read.
        dtype: Of the result.
        recent: The most slots that a token attends to, the latest of those that `shift` allows; `end` for all. Nodes
            are not counted.
    """
    if chosen(starts) == "torch":
        return attention_bias_reference(starts, shift, sees, rows, width, end, dtype, recent)
    out = torch.empty(rows, 1, width, end, dtype=dtype, device=starts.device)
    nodes, strides = (0, (0, 0)) if sees is None else (sees.shape[2], (sees.stride(0), sees.stride(1)))
    with launchable(out):
        _attention_bias[(rows * width, triton.cdiv(end, BLOCK))](
            starts, None if sees is None else sees.view(torch.int8), out, starts.stride(0), shift, recent, len(starts),
            width, end, nodes, 0 if sees is None or len(sees) == 1 else strides[0], strides[1],
            TREE=sees is not None, BLOCK=BLOCK, num_warps=2,
        )  # fmt: skip
    return out


@attention_bias.register_fake
def _(
    starts: Tensor, shift: int, sees: Tensor | None, rows: int, width: int, end: int, dtype: torch.dtype, recent: int
) -> Tensor:
    return torch.empty(rows, 1, width, end, dtype=dtype, device=starts.device)


def attention_bias_reference(
    starts: Tensor, shift: int, sees: Tensor | None, rows: int, width: int, end: int, dtype: torch.dtype, recent: int
) -> Tensor:
    """`attention_bias` in torch."""
    latest, slots = (starts + shift)[:, None, None], torch.arange(end, device=starts.device)
    if sees is None:
        own = latest + torch.arange(width, device=starts.device)[:, None]
        visible = (slots <= own) & (slots > own - recent)
    else:
        node = (slots - latest - 1).expand(-1, width, -1)
        inside = (node >= 0) & (node < sees.shape[2])
        of_nodes = sees.expand(len(starts), -1, -1).gather(2, node.clamp(0, sees.shape[2] - 1))
        visible = ((slots <= latest) & (slots > latest - recent)) | (inside & of_nodes)
    bias = torch.where(visible, 0.0, -torch.inf).to(dtype)
    return bias.repeat(rows // len(starts), 1, 1)[:, None]


@operator("mmspec::store_window", mutates_args=("keys", "values"))
def store_window(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, starts: Tensor, shift: int) -> None:
    """Writes the keys and values of the tokens of a call into a cache.

    Args:
        keys: [R, heads, capacity, size], contiguous in its last axis.
        values: As `keys`, with the same strides.
        k: [R, heads, W, size], of any strides.
        v: As `k`.
        starts: int64 [B].
        shift: The first token of a row is written to slot `starts + shift`.
    """
    if chosen(keys) == "torch":
        return store_window_reference(keys, values, k, v, starts, shift)
    rows, heads, width, size = k.shape
    k, v = (one if one.stride(3) == 1 else one.contiguous() for one in (k, v))
    with launchable(keys):
        _store_window[(rows * width * heads,)](
            keys, values, k, v, starts, starts.stride(0), shift, len(starts), width, heads, *keys.stride()[:3],
            *k.stride()[:3], *v.stride()[:3], size,
            BLOCK=triton.next_power_of_2(size), num_warps=1,
        )  # fmt: skip
    return None


@store_window.register_fake
def _(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, starts: Tensor, shift: int) -> None:
    return None


def store_window_reference(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, starts: Tensor, shift: int) -> None:
    """`store_window` in torch."""
    rows = torch.arange(len(k), device=k.device)[:, None]
    slots = (starts + shift)[rows % len(starts)] + torch.arange(k.shape[2], device=k.device)
    keys[rows, :, slots] = k.transpose(1, 2)
    values[rows, :, slots] = v.transpose(1, 2)
