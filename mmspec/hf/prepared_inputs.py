"""Inputs of a model: those that the caller of `generate` gave, and those that transformers prepared.

What transformers prepares changes with its releases: an input that mmspec does not know is ignored if it is a matter of
the loop, which mmspec replaces, and refused otherwise. What the caller gave is refused by name, where it is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from mmspec.errors import ArgumentError
from mmspec.hf.cache_name import NAMES
from mmspec.versions import comparison

# Inputs that decoding reads or sets itself, for every model.
SET_BY_DECODING = ("attention_mask", *NAMES, "use_cache", "logits_to_keep", "return_dict")
LOWEST = -1e4  # what is added to the score of a hidden slot, at most


def refuse_unknown_inputs(
    model: Any,
    inputs: Mapping[str, Any],
    known: Collection[str],
    given: Collection[str] | None,
    mask: Tensor | None = None,
) -> None:
    """Checks that no input of a model would be lost.

    Args:
        inputs: Its inputs, as transformers prepared them.
        known: Names of the inputs that are read, besides those of every model.
        given: The keywords of the caller of `generate`; None if they are not known.
        mask: [B, T], 0 on the padding of prompts; None is the attention mask among the inputs.

    Raises:
        ArgumentError: If there is another input that the caller gave, or one that transformers prepared and that is
            more than a matter of the loop.
    """
    kind = type(model).__name__
    mask = inputs.get("attention_mask") if mask is None else mask
    for name, value in inputs.items():
        if name in known or name in SET_BY_DECODING or is_nothing(value):
            continue
        if name == "position_ids" and counts_tokens(value, mask):
            continue
        encoded = name == "mm_encoder_outputs"  # what transformers makes of the images of a prompt
        if name in (given or ()) or encoded:
            shown = "pixel_values" if encoded else name
            raise ArgumentError(f"{shown} is not supported by mmspec for {kind}; leave it out")
        if is_of_the_loop(value, mask):
            continue
        who = "transformers prepared" if given is not None else "the caller gave, or transformers prepared,"
        raise ArgumentError(f"{who} {name}, which mmspec does not know for {kind}; {comparison('transformers')}")


def refuse_filled_cache(inputs: Mapping[str, Any]) -> None:
    """Checks that a call does not continue from a KV cache, whatever its name.

    Raises:
        ArgumentError: If a cache holds tokens, or is of another form than those of transformers.
    """
    for name in NAMES:
        value = inputs.get(name)
        if value is not None and not is_cache(value):
            raise ArgumentError(
                f"{name} must be a cache of transformers, not a {type(value).__name__}, and mmspec has its own: leave "
                "it out"
            )
    for name, value in inputs.items():
        if is_cache(value) and int(value.get_seq_length()) > 0:
            raise ArgumentError(f"{name} already holds tokens; mmspec prefills the prompt itself: leave it out")


def is_nothing(value: Any) -> bool:
    """Whether an input says nothing: None, or a dict of nothing."""
    return value is None or (isinstance(value, dict) and all(map(is_nothing, value.values())))


def is_cache(value: Any) -> bool:
    """Whether an input is a KV cache."""
    return hasattr(value, "get_seq_length")


def is_of_the_loop(value: Any, mask: Tensor | None = None) -> bool:
    """Whether an input is one that a loop makes anew in each step: an empty cache, a flag, a mask or positions.

    Args:
        value: The input.
        mask: [B, T], 0 on the padding of prompts, whose positions mean nothing; None without padding.
    """
    if isinstance(value, dict):  # masks by kind of layer
        return all(is_of_the_loop(each, mask) for each in value.values())
    if isinstance(value, Tensor):
        return _is_mask(value, mask) or _counts(value, mask)
    return is_nothing(value) or is_cache(value) or isinstance(value, bool | int | BlockMask)


def counts_tokens(value: Any, mask: Tensor | None) -> bool:
    """Whether position ids are those that decoding sets: they count the tokens of each prompt from 0."""
    if not isinstance(value, Tensor) or value.is_floating_point() or not value.ndim:
        return False
    shown = torch.ones_like(value, dtype=torch.bool) if mask is None else (mask != 0).to(value.device)
    if value.shape[-1] != shown.shape[-1]:
        return False
    return bool(((value == shown.long().cumsum(-1) - 1) | ~shown).all())


def _is_mask(value: Tensor, mask: Tensor | None) -> bool:
    """Whether a tensor is a mask of attention: [R, 1, W, end], or that of the prompts, or one that says nothing."""
    if value.ndim == 4:
        added = value.is_floating_point() and bool(((value == 0) | (value <= LOWEST)).all())
        return value.shape[1] == 1 and (added or value.dtype == torch.bool)
    if value.is_floating_point() or value.is_complex():
        return False
    same = mask is not None and mask.shape == value.shape and bool(((mask != 0).to(value.device) == (value != 0)).all())
    return bool(((value == 0) | (value == 1)).all()) and (same or bool((value == value.flatten()[:1]).all()))


def _counts(value: Tensor, mask: Tensor | None) -> bool:
    """Whether a tensor holds positions: integers that stay, or grow by 1, along the prompts."""
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool or not value.ndim:
        return False
    if mask is not None and value.shape[-1] != mask.shape[-1]:
        return False
    steps = value.diff(dim=-1)
    padding = torch.zeros_like(steps, dtype=torch.bool)
    if mask is not None and mask.shape == value.shape[-mask.ndim :]:
        padding = padding | (mask[..., :-1] == 0).to(value.device)
    return bool(((steps == 0) | (steps == 1) | padding).all())
