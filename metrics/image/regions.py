"""Objects, outlines and background: what an image shows at the place of each of its tokens."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from mmspec.metrics.extractors.image import Images
from mmspec.vision.shapes.pixels import BACKGROUND_RGB, OBJECT_RGB

REGIONS: Final = ("object", "outline", "background")
_OBJECTS = np.array(list(OBJECT_RGB.values()), dtype=np.float64)
_TONES = np.array([tone for tones in BACKGROUND_RGB.values() for tone in tones], dtype=np.float64)
_GROUNDS = np.array([tones[0] for tones in BACKGROUND_RGB.values()], dtype=np.float64)
_DARKEST = 0.2  # brightness of the dots of an object of `scenes`, a share of that of its color
_FAR = 60.0**2  # squared distance beyond which a pixel is not of a background, however much farther it is


def regions(objects: NDArray[np.bool_], rows: int, columns: int) -> NDArray[np.int64]:
    """The region of each token, indices into `REGIONS`, int64 [rows * columns].

    A token lies in an object or in the background if nine in ten of its pixels do, else on an outline.

    Args:
        objects: The pixels [H, W] of objects; its sides are multiples of `rows` and `columns`.
        rows: Tokens per column of the grid.
        columns: Tokens per row of the grid.
    """
    height, width = objects.shape
    share = objects.reshape(rows, height // rows, columns, width // columns).mean((1, 3)).ravel()
    return np.where(share >= 0.9, 0, np.where(share <= 0.1, 2, 1))


def shapes_objects(image: Images) -> NDArray[np.bool_]:
    """The pixels [H, W] of objects of `shapes`, by color: nearer to that of an object than to any tone of a background.

    Args:
        image: uint8 [H, W, 3].
    """
    pixels = image.astype(np.float64)[:, :, None]
    objects = np.square(pixels - _OBJECTS).sum(-1).min(-1)
    grounds = np.square(pixels - _TONES).sum(-1).min(-1)
    return np.asarray(objects < grounds)


def scenes_objects(image: Images) -> NDArray[np.bool_]:
    """The pixels [H, W] of objects of `scenes`.

    A background is one color with tones and marks that are brighter or darker by as much in each channel, and an object
    one color that stripes and dots darken in proportion. The background of an image is the one that fits its pixels
    best; a pixel belongs to an object if the nearest object color fits it better.

    Args:
        image: uint8 [H, W, 3].
    """
    pixels = image.astype(np.float64)
    offsets = pixels[:, :, None] - _GROUNDS
    grounds = np.square(offsets - offsets.mean(-1, keepdims=True)).sum(-1)  # [H, W, backgrounds]
    ground = grounds[..., np.minimum(grounds, _FAR).mean((0, 1)).argmin()]
    shade = (pixels @ _OBJECTS.T / np.square(_OBJECTS).sum(-1)).clip(_DARKEST, 1)
    objects = np.square(pixels[:, :, None] - shade[..., None] * _OBJECTS).sum(-1).min(-1)
    return np.asarray(objects < ground)
