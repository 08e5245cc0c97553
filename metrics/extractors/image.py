"""Extractors of images, and batches of images for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmspec import limits
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
        images: Of any sizes; images that follow each other are in one call if they have one size.
        batch: Images per call, fewer of large ones.
        names: Names of the images, for messages; None numbers them.

    Raises:
        ArgumentError: If there are no images, or one has another shape or type, or a size that the extractor does not
            read.
    """
    parts: list[Features] = []
    first: tuple[int, ...] | None = None
    for stack in stack_images(images, batch, names):
        count = sum(map(len, parts))
        first = first or stack.shape[1:]
        with naming(str(count) if names is None else repr(names[count]), stack, first):
            parts.append(extractor(stack))
    if not parts:
        raise ArgumentError("images is empty; there must be at least one")
    return np.concatenate(parts)


@contextmanager
def naming(name: str, images: Images, first: tuple[int, ...]) -> Iterator[None]:
    """Names the image of which an extractor raises, where it has another size than the first of all."""
    try:
        yield
    except ArgumentError as error:
        if images.shape[1:] == first:
            raise
        raise ArgumentError(
            f"image {name} is {images.dtype} {list(images.shape[1:])}; all must be of a size that is read, "
            f"the first is {list(first)}: {error}"
        ) from None


def stack_images(images: Iterable[Images], batch: int, names: Sequence[str] | None = None) -> Iterator[Images]:
    """Batches uint8 [B, H, W, 3] of images uint8 [H, W, 3], each of one size.

    A batch has no more pixels than the largest image allowed, `limits.PIXELS`.

    Raises:
        ArgumentError: If an image has another shape or type.
    """
    waiting: list[Images] = []
    for i, image in enumerate(images):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            name = str(i) if names is None else repr(names[i])
            raise ArgumentError(f"image {name} is {image.dtype} {list(image.shape)}; all must be uint8 [H, W, 3]")
        full = len(waiting) == max(1, min(batch, limits.PIXELS.value * 3 // image.size))
        if waiting and (full or image.shape != waiting[0].shape):
            yield np.stack(waiting)
            waiting = []
        waiting.append(image)
    if waiting:
        yield np.stack(waiting)
