"""Features of `shapes`: the last hidden layer of its classifier, which ships with mmspec and works offline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mmspec.errors import ArgumentError
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.pretrained import load_saved
from mmspec.metrics.features import Features
from mmspec.vision.shapes.classifier import ShapesClassifier
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.domain import IMAGE_SIZE
from mmspec.vision.shapes.pixels import to_tensor


class ShapesExtractor:
    """The last hidden layer of a `ShapesClassifier`, which runs on the CPU; images are 64x64.

    Args:
        classifier: None is the embedded one.
    """

    name = "shapes"

    def __init__(self, classifier: ShapesClassifier | None = None) -> None:
        self.classifier = (embedded_classifier() if classifier is None else classifier).eval()
        self.fingerprint = fingerprint_of(self.classifier)

    @torch.no_grad()
    def __call__(self, images: Images) -> Features:
        """Features float64 [B, hidden] of images uint8 [B, 64, 64, 3].

        Raises:
            ArgumentError: If the images have another size.
        """
        if images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3):
            raise ArgumentError(
                f"extractor 'shapes' reads images of {IMAGE_SIZE}x{IMAGE_SIZE} pixels, not {list(images.shape[1:3])}"
            )
        return np.asarray(self.classifier.body(to_tensor(images)).double().numpy())


def load(where: str, device: str) -> ShapesExtractor:
    """The extractor of the classifier in a folder, of the embedded one for "".

    Raises:
        ModelError: If the classifier cannot be loaded.
    """
    return ShapesExtractor(load_classifier(Path(where)) if where else None)


def embedded_classifier() -> ShapesClassifier:
    """The classifier that ships with `shapes`, on the CPU in float32."""
    return load_classifier(WEIGHTS / "classifier")


def load_classifier(folder: Path) -> ShapesClassifier:
    """The classifier in a folder that `save_pretrained` wrote.

    Raises:
        ModelError: If there is none.
    """
    return load_saved(ShapesClassifier, folder, "shapes")
