"""Positions of video tokens: rotary angles and absolute embeddings over time, rows and columns."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

# The range of frequencies that YaRN leaves as they are, and the factor of the others, of the published 12B and 13B,
# which were extended from videos of [3, 40, 64] latents.
YARN_FAST, YARN_SLOW, YARN_SCALE = 4, 1, 2
YARN_SHAPE = (3, 40, 64)
THETA = 500_000.0


def split(dim: int) -> tuple[int, int, int]:
    """The parts of `dim` features that time, rows and columns have."""
    space = dim // 6 * 2
    return dim - 2 * space, space, space


def rotary_angles(shape: tuple[int, int, int], head_dim: int, yarn: bool) -> Tensor:
    """The angles float32 [T * H * W, head_dim] of a video's tokens, in raster order.

    Args:
        shape: Latent frames, rows and columns, [T, H, W].
        head_dim: Features of a head.
        yarn: Whether low frequencies are stretched, as in the published 12B.
    """
    parts = []
    for axis, (count, dim) in enumerate(zip(shape, split(head_dim), strict=True)):
        frequency = 1.0 / THETA ** (torch.arange(0, dim, 2).float() / dim)
        if yarn:
            # The published code takes the original number of rows for columns too.
            frequency = stretched(frequency, YARN_SHAPE[min(axis, 1)])
        places = [1, 1, 1]
        places[axis] = count
        angle = torch.outer(torch.arange(count).float(), frequency)
        parts.append(angle.view(*places, -1).expand(*shape, -1))
    return torch.cat(parts * 2, dim=-1).flatten(0, 2)


def stretched(frequency: Tensor, original: int) -> Tensor:
    """Frequencies after YaRN's interpolation, for an axis that was `original` long in training."""
    high, low = (2 * pi * beta / original for beta in (YARN_FAST, YARN_SLOW))
    keep = ((frequency - low) / (high - low)).clamp(0, 1)
    return frequency * ((1 - keep) / YARN_SCALE + keep)


def absolute_embeddings(shape: tuple[int, int, int], dim: int) -> Tensor:
    """Sine and cosine embeddings float32 [T * H * W, dim], rounded to bfloat16 as in the published code."""
    parts = []
    for axis, (count, part) in enumerate(zip(shape, split(dim), strict=True)):
        omega = 1.0 / 10_000 ** (torch.arange(part // 2).double() / (part / 2))
        angle = torch.outer(torch.arange(count).double(), omega)
        places = [1, 1, 1]
        places[axis] = count
        embedding = torch.cat([angle.sin(), angle.cos()], dim=1)
        parts.append(embedding.view(*places, -1).expand(*shape, -1))
    return torch.cat(parts, dim=-1).flatten(0, 2).bfloat16().float()
