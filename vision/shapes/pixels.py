"""Pixels of the images of the embedded models: their colors, and how networks read them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

OBJECT_RGB = {
    "red": (220, 35, 35), "green": (40, 165, 50), "blue": (40, 75, 225),
    "yellow": (250, 215, 40), "purple": (135, 40, 170), "orange": (250, 130, 25),
}  # fmt: skip
# Background color, and second tone of its stripes, checks and speckles.
BACKGROUND_RGB = {
    "white": ((250, 250, 250), (205, 205, 205)), "black": ((8, 8, 8), (62, 62, 62)),
    "gray": ((128, 128, 128), (162, 162, 162)), "pink": ((250, 180, 200), (255, 222, 232)),
    "teal": ((0, 122, 122), (70, 178, 172)),
}  # fmt: skip


def to_tensor(images: NDArray[np.uint8]) -> torch.Tensor:
    """Converts uint8 [B, H, W, 3] to float32 [B, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float().div(127.5).sub(1.0).contiguous()
