"""The slots of a window that a row has; see `mmspec.decoding.batch.BatchState.own_slots`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def own_slots_reference(positions: Tensor, limits: Tensor) -> list[int]:
    """The number of slots of each row, from the positions int64 [B, W] of a window and the rows' limits, int64 [B]."""
    start, width = positions[:, 0], positions.shape[1]
    counts = (limits - start + 1).clamp(max=width)
    return counts.masked_fill(start >= limits, 0).tolist()


@triton.jit
def own_slots(start, limit, width):
    """The number of slots that a row has: up to one past its end, and none once it has ended."""
    return tl.where(start < limit, tl.minimum(limit.to(tl.int32) - start + 1, width), 0)
