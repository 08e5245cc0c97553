"""Logits of a window, with and without classifier-free guidance (CFG)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Logits(NamedTuple):
    """Raw logits of one window: `cond` [B, W, V], and `uncond` of the same shape with guidance, else None."""

    cond: Tensor
    uncond: Tensor | None = None


def cfg_rows(row_ids: list[int], count: int, guided: bool, device: torch.device) -> Tensor:
    """Indices of `row_ids` in a batch of `count` rows that guidance doubles.

    Returns:
        int64: the conditional rows, then, if `guided`, their unconditional rows.
    """
    index = torch.tensor(row_ids, device=device)
    return torch.cat([index, index + count]) if guided else index


def split_cfg(logits: Tensor, guided: bool) -> Logits:
    """Splits the logits of a doubled batch [2 * B, W, V] into halves; without guidance they are [B, W, V]."""
    if not guided:
        return Logits(logits, None)
    cond, uncond = logits.chunk(2)
    return Logits(cond, uncond)
