"""The widest type of sums on a device."""

from __future__ import annotations

from functools import cache

import torch


def widest(device: torch.device) -> torch.dtype:
    """float64, in which sums of probabilities are inverted; float32 on a device that has no float64, such as `mps`.

    Sums of at most a few hundred groups of tokens are added in this type: in float32 a probability is off by about
    1e-5 of itself at most.
    """
    return torch.float64 if _has_float64(device.type) else torch.float32


@cache
def _has_float64(kind: str) -> bool:
    if kind in ("cpu", "cuda", "meta"):
        return True
    try:
        torch.empty(0, dtype=torch.float64, device=kind)
    except (TypeError, RuntimeError):
        return False
    return True
