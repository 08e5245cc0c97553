"""Logits of a window, with and without guidance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Logits(NamedTuple):
    """What a target says about a window: `cond` [B, W, V], and `uncond` of the same shape when guidance is on."""

    cond: Tensor
    uncond: Tensor | None


def cfg_rows(row_ids: list[int], count: int, guided: bool, device: torch.device) -> Tensor:
    """Where a doubled batch keeps `row_ids` of its `count` rows: int64, the conditional ones, then their unconditional."""
    index = torch.tensor(row_ids, device=device)
    return torch.cat([index, index + count]) if guided else index


def split_cfg(logits: Tensor, guided: bool) -> Logits:
    """The two halves of a doubled batch's logits [2 * B, W, V], or those of a plain one [B, W, V]."""
    if not guided:
        return Logits(logits, None)
    cond, uncond = logits.chunk(2)
    return Logits(cond, uncond)
