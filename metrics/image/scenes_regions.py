"""Which pixels of images of `scenes` belong to objects, by their colors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmspec.metrics.extractors.image import Images
from mmspec.vision.shapes.pixels import BACKGROUND_RGB, OBJECT_RGB

_OBJECTS = np.array(list(OBJECT_RGB.values()), dtype=np.float64)
_GROUNDS = np.array([tones[0] for tones in BACKGROUND_RGB.values()], dtype=np.float64)
_DARKEST = 0.2  # brightness of the dots of an object, a share of that of its color
_FAR = 60.0**2  # squared distance beyond which a pixel is not of a background, however much farther it is


def object_pixels(image: Images) -> NDArray[np.bool_]:
    """The pixels [H, W] of objects.

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
