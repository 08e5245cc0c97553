"""A tiny UTMOS: weights by name, and recordings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

CONVS = [(16, 10, 5), (16, 3, 2), (24, 2, 2)]
DIM, INNER, LAYERS, POSITIONS, GROUPS = 128, 32, 2, 8, 16
EMBEDDING, DOMAINS, JUDGES, HIDDEN, PROJECTION = 6, 3, 300, 20, 12
RATE = 16_000


def values(name: str, shape: torch.Size) -> torch.Tensor:
    """The parameter of a name, alike in all versions of torch."""
    draws = torch.Generator().manual_seed(sum(map(ord, name)))
    found = torch.randn(shape, generator=draws) * (0.2 if len(shape) > 1 else 0.1)
    if name.endswith("weight_g"):
        return found.abs() + 0.5
    return found + 1 if ("norm" in name or "0.2.weight" in name) and name.endswith("weight") else found


def waves() -> list[Any]:
    """Mono recordings at 16 kHz, float32 [T]: tones and noise, of an even and an odd number of frames."""
    rng = np.random.default_rng(3)
    return [
        (np.sin(np.arange(length) * pitch) * loudness + rng.normal(0, 0.02, length)).astype(np.float32)
        for length, pitch, loudness in ((4000, 0.05, 0.5), (3180, 0.2, 0.1), (2500, 0.01, 0.9))
    ]
