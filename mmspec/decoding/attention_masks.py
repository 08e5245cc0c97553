"""Attention masks of windows and trees over a KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.decoding.kv_cache import WindowSlots


def tree_mask(root: Tensor, sees: Tensor, end: int) -> Tensor:
    """The cache slots that W entries of a tree attend to, bool [R, W, end].

    Entry i of the tree is in slot `root + i`. An entry attends to every slot up to that of the root, and to those of
    its ancestors and itself.

    Args:
        root: int64 [R], the slot of each row's root.
        sees: bool [R', W, n], the ancestors and the entry itself among the n entries after the root; see
            `mmspec.sampling.tree.Tree.sees`. R' divides R; row r of the cache takes row r % R' of `sees`, so that with
            guidance the unconditional rows read the same tree.
        end: The number of slots that are read, at least max(root) + n + 1.
    """
    key = torch.arange(end, device=root.device)
    mask = (key <= root[:, None, None]).repeat(1, sees.shape[1], 1)
    sees = sees.repeat(len(root) // len(sees), 1, 1)
    slots = (root[:, None] + torch.arange(1, 1 + sees.shape[2], device=root.device))[:, None]
    return mask.scatter_(2, slots.expand_as(sees), sees)


def additive_mask(mask: Tensor, dtype: torch.dtype, hidden: float | None = None) -> Tensor:
    """Values to add to attention scores, [R, 1, W, end], for a bool mask [R, W, end].

    A visible slot gets 0 and a hidden one `hidden`, by default the lowest finite value of `dtype`. The eager attention
    of transformers adds the mask whatever its dtype, so a bool mask would not work there. The values are finite because
    the softmax of a row without a visible slot would otherwise be NaN.
    """
    value = torch.finfo(dtype).min if hidden is None else hidden
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, value)[:, None]


def short_bias(
    bias: Tensor | None, slots: Tensor, prompt: Tensor, recent: int, window: WindowSlots, first: int, start: int
) -> Tensor:
    """Limits a window to the prompt and the last tokens, and leaves the slots in between unread.

    StreamingLLM's sinks and window (Xiao et al. 2023, arXiv 2309.17453), with the whole prompt as sink.

    Args:
        bias: The additive mask of the window, broadcast over [R, 1, W, end]; None is causal for one token per row.
        slots: int64 [R or 1, W], the slot of every token.
        prompt: int64 [R or 1], the slots of each row's prompt, which stay visible.
        recent: The number of last tokens that a token attends to, itself included.
        window: Its `unread` is set.
        first: The largest number of slots of a prompt.
        start: The first slot of the window in any row.

    Returns:
        The mask [R or 1, 1, W, slots that are read].
    """
    key = torch.arange(window.end, device=slots.device)
    old = (key >= prompt[:, None, None]) & (key <= slots[..., None] - recent)
    dtype = torch.float32 if bias is None else bias.dtype
    shape = torch.zeros((), dtype=dtype, device=slots.device) if bias is None else bias
    bias = shape.masked_fill(old[:, None], torch.finfo(dtype).min)
    last = max(start - recent + 1, first)
    window.unread = (first, last)
    return torch.cat([bias[..., :first], bias[..., last:]], dim=-1)
