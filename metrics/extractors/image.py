"""Extractors of images, and batches of images for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.metrics.extractors.extractor import NamedExtractor
from mmspec.metrics.features import Features

Images = NDArray[np.uint8]


class ImageExtractor(NamedExtractor, Protocol):
    """Computes features of images."""

    def __call__(self, images: Images) -> Features:
        """Features float64 [B, D] of images uint8 [B, H, W, 3]; an image's features do not depend on its batch."""
        ...


def extract(
    extractor: ImageExtractor, images: Iterable[Images], batch: int = 32, names: Sequence[str] | None = None
) -> Features:
    """Features [N, D] of images uint8 [H, W, 3], which need not all be in memory at once.

    Args:
        extractor: Called with up to `batch` images.
        images: All of one size.
        batch: Images per call.
        names: Names of the images, for messages; None numbers them.

    Raises:
        ArgumentError: If there are no images, or one has another shape or type than the first.
    """
    parts = [extractor(stack) for stack in stack_images(images, batch, names)]
    if not parts:
        raise ArgumentError("images is empty; there must be at least one")
    return np.concatenate(parts)


def stack_images(images: Iterable[Images], batch: int, names: Sequence[str] | None = None) -> Iterator[Images]:
    """Batches uint8 [B, H, W, 3] of images uint8 [H, W, 3].

    Raises:
        ArgumentError: If an image has another shape or type than the first.
    """
    waiting: list[Images] = []
    shape: tuple[int, ...] | None = None
    for i, image in enumerate(images):
        shape = image.shape if shape is None else shape
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape != shape or image.shape[2] != 3:
            name = str(i) if names is None else repr(names[i])
            raise ArgumentError(
                f"image {name} is {image.dtype} {list(image.shape)}; all must be uint8 [H, W, 3] of one size, "
                f"the first is {list(shape)}"
            )
        waiting.append(image)
        if len(waiting) == batch:
            yield np.stack(waiting)
            waiting = []
    if waiting:
        yield np.stack(waiting)
