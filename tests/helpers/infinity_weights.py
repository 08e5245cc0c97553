"""Weights and sizes of a tiny Infinity, for the original as well."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

DIM, DEPTH, HEADS, BITS, TEXT, LENGTHS = 32, 2, 2, 4, 256, (3, 5)
SIZES = [(n, n) for n in (1, 2, 4, 6)]
HIDDEN, LONGEST, CHUNKS = 256, 8, 2


def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight of an original name, float32."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return torch.from_numpy(values.astype(np.float32)) * (0.3 if len(shape) > 1 else 0.1)


def texts() -> list[Tensor]:
    """The features of two texts."""
    return [weight(f"text{i}", (length, TEXT)) for i, length in enumerate(LENGTHS)]
