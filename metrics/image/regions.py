"""Objects, outlines and background: what an image shows at the place of each of its tokens."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

REGIONS: Final = ("object", "outline", "background")


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
