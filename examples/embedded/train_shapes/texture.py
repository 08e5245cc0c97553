"""The texture of rough backgrounds: a random relief of brightness, and pebbles, which captions do not name."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

PEBBLE_RGB = (122, 92, 62)
PEBBLE_RADIUS = 3  # px
_LATTICES = ((16, 0.7), (8, 0.7))  # px between the nodes of each octave, and its weight


def relief(rng: np.random.Generator, side: int) -> Array:
    """A smooth random field of about unit deviation, float32 [side, side]: two octaves of interpolated nodes."""
    total = np.zeros((side, side))
    for step, weight in _LATTICES:
        nodes = rng.standard_normal((side // step + 1,) * 2)
        ramp = _ramps(side, step)
        total += weight * 1.5 * (ramp @ nodes @ ramp.T)  # interpolation reduces the deviation by a third
    return total.astype(np.float32)


@cache
def _ramps(side: int, step: int) -> NDArray[np.float64]:
    """Weights of linear interpolation along an axis, float64 [side, nodes]."""
    where = (np.arange(side)[:, None] + 0.5) / step
    return np.clip(1 - abs(where - np.arange(side // step + 1)), 0, None)


def pebbles(rng: np.random.Generator, most: int, side: int, grid: int) -> list[tuple[int, int]]:
    """Centres (x, y) of 1 to `most` pebbles, inside the image and on the grid."""
    cells = side // grid
    count = int(rng.integers(1, most + 1))
    return [(int(x) * grid, int(y) * grid) for x, y in rng.integers(1, cells, (count, 2))]
