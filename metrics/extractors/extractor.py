"""What every extractor is, and how a network is told from another one of its name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features

Images = NDArray[np.uint8]


class Named(Protocol):
    """What tells one network from another.

    Attributes:
        name: How a metric names it, such as "clip".
        fingerprint: Changes when its weights do; features of different fingerprints must not be compared.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


class Extractor(Named, Protocol):
    """Makes features of images."""

    def __call__(self, images: Images) -> Features:
        """Features float64 [B, D] of images uint8 [B, H, W, 3]; an image's do not depend on its batch."""
        ...


def identity(extractor: Named) -> str:
    """Name and fingerprint in one word, as results and reference files hold it."""
    return f"{extractor.name}-{extractor.fingerprint}"


def extract(
    extractor: Extractor, images: Iterable[Images], batch: int = 32, names: Sequence[str] | None = None
) -> Features:
    """Features [N, D] of images uint8 [H, W, 3], which need not all be in memory at once.

    Args:
        names: What an image is called in messages; None numbers them.

    Raises:
        ArgumentError: When there is none, or one is not what the first one is.
    """
    parts: list[Features] = []
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
            parts.append(extractor(np.stack(waiting)))
            waiting = []
    if waiting:
        parts.append(extractor(np.stack(waiting)))
    if not parts:
        raise ArgumentError("images is empty; there must be at least one")
    return np.concatenate(parts)


def fingerprint_of(module: torch.nn.Module) -> str:
    """The first 12 digits of the SHA-256 of a module's weights and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]
