"""Which pixels of images of `shapes` belong to objects, by the colors that only objects have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmspec.metrics.extractors.image import Images
from mmspec.vision.shapes.pixels import BACKGROUND_RGB, OBJECT_RGB

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
