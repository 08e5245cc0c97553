"""Grouped-query attention of transformers' models without copies of keys and values.

For a window of several tokens and a mask, transformers repeats every key and value once per query head of its group:
of the whole cache, at every layer of every call. Here the queries of a group become further rows of one head instead,
which gives the same scores: query head h of token w is row (h mod n) * W + w of key head h // n, for groups of n heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Inside a call, its masks with their folded copies, by identity and group size: all layers share one.
_Masks = dict[tuple[int, int], tuple[Tensor, Tensor]]
# What the function below reads.
_READ = ("module", "query", "key", "value", "attention_mask", "dropout", "scaling")
_masks: ContextVar[_Masks | None] = ContextVar("masks", default=None)


@contextmanager
def folded_groups(device: torch.device) -> Iterator[None]:
    """A context in which attention by "sdpa" folds groups, in this thread, on a CUDA device; nothing on others."""
    if device.type != "cuda":
        yield
        return
    _install()
    token = _masks.set({})
    try:
        yield
    finally:
        _masks.reset(token)


def fold(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """The attention [R, heads, W, D] of queries [R, heads, W, D] to keys and values [R, key heads, end, D].

    Args:
        query: Of all heads.
        key: Of fewer heads, which divide those of the queries.
        value: As `key`.
        mask: [R or 1, 1, W, end], added to the scores, or bool; the same for all heads.
        scale: Of the scores; None is that of the head's width.
    """
    heads, width = query.shape[1:3]
    groups = key.shape[1]
    size = heads // groups
    rows = query.unflatten(1, (groups, size)).flatten(2, 3)
    mask = _folded_mask(mask, size)
    out = F.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scale)
    return out.unflatten(2, (size, width)).flatten(1, 2)


def _folded_mask(mask: Tensor, size: int) -> Tensor:
    """The mask [R or 1, 1, size * W, end] of the queries of groups of `size` heads."""
    masks = _masks.get()
    if masks is None:
        return mask[:, :, None].expand(-1, -1, size, -1, -1).flatten(2, 3)
    key = id(mask), size
    if key not in masks:  # the mask itself is kept too, so that no other one gets its identity
        masks[key] = mask, mask[:, :, None].expand(-1, -1, size, -1, -1).flatten(2, 3)
    return masks[key][1]


@cache
def _install() -> None:
    """Puts a function that folds inside `folded_groups` before transformers' own "sdpa", which all others still get."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("sdpa", _folding_before(ALL_ATTENTION_FUNCTIONS["sdpa"]))


def _folding_before(own: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[Tensor, Any]]:
    """An attention function of transformers that folds where it can, and is `own` elsewhere."""
    # With a mask, nothing depends on `is_causal`. What else a release reads, `own` computes.
    others = {*signature(own).parameters, "softcap"} - {*_READ, "is_causal", "kwargs"}

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[Tensor, Any]:
        folds = (
            _masks.get() is not None
            and getattr(module, "num_key_value_groups", 1) > 1
            and key.shape[1] < query.shape[1]
            and attention_mask is not None
            and attention_mask.shape[1] == 1
            and not dropout
            and all(more.get(name) is None for name in others)
        )
        if not folds or attention_mask is None:
            return own(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more)
        return fold(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None

    return attention
