"""Attention kernels that a model must not use."""

from __future__ import annotations

from typing import Any

from torch import nn

from mmspec.errors import ArgumentError


def refuse_flash_attention(decoder: Any) -> None:
    """Checks that a decoder's attention takes an additive mask, which flash attention misreads as one of padding.

    Raises:
        ArgumentError: If it is flash attention.
    """
    kernel = getattr(getattr(decoder, "config", None), "_attn_implementation", None)
    if isinstance(kernel, str) and "flash" in kernel:
        raise ArgumentError(
            f"attn_implementation={kernel!r} takes no masks of drafts and of rows at different positions; "
            "load the model with 'sdpa', or call model.set_attn_implementation('sdpa')"
        )


def refuse_flash_attention_inside(model: nn.Module) -> None:
    """`refuse_flash_attention` for every part of a model that consists of several decoders.

    Raises:
        ArgumentError: If a part uses flash attention.
    """
    for part in model.modules():
        refuse_flash_attention(part)
