"""What draft heads do around their attention: the mask, and keys and values in a cache by slot.

The tokens of a call lie in slots one after another, which begin elsewhere in each row. With guidance the unconditional
rows follow the conditional ones and read the same slots, so that R is B or 2 B.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.decoding.attention_masks import additive_mask, tree_mask
from mmspec.decoding.kv_cache import KVCache, WindowSlots
from mmspec.kernels.backend import choose
from mmspec.sampling.numbers import Numbers


def written(cache: KVCache, layer: int, k: Tensor, v: Tensor, starts: Numbers, shift: int = 0) -> tuple[Tensor, Tensor]:
    """Writes keys and values of W tokens; returns those up to the last slot of any row, [R, heads, end, head_dim].

    Args:
        cache: A cache of R rows that is not quantized.
        k: [R, heads, W, head_dim].
        v: [R, heads, W, head_dim].
        starts: [B]; the first token of a row is written to slot `starts + shift`.
    """
    keys, values = cache.layer(layer)
    first, last = int(starts.host.min()) + shift, int(starts.host.max()) + shift
    end = last + k.shape[2]
    if choose(keys.device.type) == "triton":
        from mmspec.kernels.head_window import store_window  # Triton may be missing

        assert isinstance(keys, Tensor) and isinstance(values, Tensor), "only caches of targets are quantized"
        store_window(keys, values, k, v, starts.on(keys.device), shift)
        return keys[:, :, :end], values[:, :, :end]
    window = WindowSlots(first, end)
    if first != last:
        slots = starts.on(keys.device)[:, None] + torch.arange(shift, shift + k.shape[2], device=keys.device)
        window.slots = slots.repeat(len(k) // len(slots), 1)
    return window.write(keys, k), window.write(values, v)


def bias_of_window(
    starts: Numbers,
    shift: int,
    rows: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
    recent: int | None = None,
) -> Tensor | None:
    """The mask of W tokens of each row, as numbers to add to attention scores, [R, 1, W, end].

    A token attends to the slots up to its own. None if those are all that is read.

    Args:
        starts: [B]; the first token of a row is in slot `starts + shift`.
        rows: R.
        width: W.
        dtype: Of the result.
        device: Of the result.
        recent: The most slots that a token attends to, the latest ones; None for all.
    """
    end = int(starts.host.max()) + shift + width
    recent = end if recent is None else min(recent, end)
    if width == 1 and recent == end and (starts.host == starts.host[0]).all():
        return None
    there = starts.on(device)
    if choose(device.type) == "triton":
        from mmspec.kernels.head_window import attention_bias  # Triton may be missing

        return attention_bias(there, shift, None, rows, width, end, dtype, recent)
    own = (there[:, None] + torch.arange(shift, shift + width, device=device))[..., None]
    slots = torch.arange(end, device=device)
    mask = (slots <= own) & (slots > own - recent)
    return additive_mask(mask, dtype, hidden=-torch.inf).repeat(rows // len(there), 1, 1, 1)


def bias_of_nodes(
    root: Numbers,
    shift: int,
    sees: Tensor,
    rows: int,
    end: int,
    dtype: torch.dtype,
    device: torch.device,
    recent: int | None = None,
) -> Tensor:
    """The mask of nodes of a tree, as numbers to add to attention scores, [R, 1, W, end].

    A node attends to the slots up to that of the root, `root + shift`, and to nodes in the slots after it.

    Args:
        root: [B].
        sees: bool [B or 1, W, n], which of the nodes each one attends to.
        rows: R.
        end: The number of slots that are read.
        dtype: Of the result.
        device: Of the result.
        recent: The most slots up to that of the root that a node attends to, the latest ones; None for all.
    """
    there, recent = root.on(sees.device), end if recent is None else min(recent, end)
    if choose(sees.device.type) == "triton":
        from mmspec.kernels.head_window import attention_bias  # Triton may be missing

        return attention_bias(there, shift, sees, rows, sees.shape[1], end, dtype, recent).to(device)
    seen = tree_mask(there + shift, sees, end)
    if recent < end:
        seen &= torch.arange(end, device=sees.device) > (there + shift - recent)[:, None, None]
    mask = additive_mask(seen, dtype, hidden=-torch.inf)
    return mask.to(device).repeat(rows // len(there), 1, 1, 1)
