"""Objects, outlines and background of images of `shapes`, by the colors that only its objects have."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from mmspec.metrics.extractors.image import Images
from mmspec.vision.shapes.render import BACKGROUND_RGB, OBJECT_RGB

REGIONS: Final = ("object", "outline", "background")
_OBJECTS = np.array(list(OBJECT_RGB.values()), dtype=np.float64)
_GROUNDS = np.array([tone for tones in BACKGROUND_RGB.values() for tone in tones], dtype=np.float64)


def object_pixels(image: Images) -> NDArray[np.bool_]:
    """The pixels [H, W] whose color is nearer to that of an object than to any tone of a background.

    Args:
        image: uint8 [H, W, 3].
    """
    pixels = image.astype(np.float64)[:, :, None]
    objects = np.square(pixels - _OBJECTS).sum(-1).min(-1)
    grounds = np.square(pixels - _GROUNDS).sum(-1).min(-1)
    return np.asarray(objects < grounds)


def regions(image: Images, rows: int, columns: int) -> NDArray[np.int64]:
    """The region of each token, indices into `REGIONS`, int64 [rows * columns].

    A token lies in an object or in the background if nine in ten of its pixels do, else on an outline.

    Args:
        image: uint8 [H, W, 3]; its sides are multiples of `rows` and `columns`.
        rows: Tokens per column of the grid.
        columns: Tokens per row of the grid.
    """
    found = object_pixels(image)
    height, width = found.shape
    share = found.reshape(rows, height // rows, columns, width // columns).mean((1, 3)).ravel()
    return np.where(share >= 0.9, 0, np.where(share <= 0.1, 2, 1))
