"""Features of `scenes`: the last hidden layer of its classifier, the mean of an image's quadrants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mmspec.errors import ArgumentError
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.pretrained import load_saved
from mmspec.metrics.features import Features
from mmspec.vision.scenes.classifier import ScenesClassifier
from mmspec.vision.scenes.config import WEIGHTS
from mmspec.vision.scenes.domain import IMAGE_SIZE
from mmspec.vision.shapes.pixels import to_tensor


class ScenesExtractor:
    """The last hidden layer of a `ScenesClassifier`, images are 96x96."""

    name = "scenes"

    def __init__(self, classifier: ScenesClassifier) -> None:
        self.classifier = classifier.eval()
        self.fingerprint = fingerprint_of(self.classifier)

    @torch.no_grad()
    def __call__(self, images: Images) -> Features:
        """Features float64 [B, hidden] of images uint8 [B, 96, 96, 3].

        Raises:
            ArgumentError: If the images have another size.
        """
        if images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3):
            raise ArgumentError(
                f"extractor 'scenes' reads images of {IMAGE_SIZE}x{IMAGE_SIZE} pixels, not {list(images.shape[1:3])}"
            )
        return np.asarray(
            self.classifier.quadrants(to_tensor(images).to(self.classifier.device)).mean(1).double().cpu().numpy()
        )


def load(where: str, device: str) -> ScenesExtractor:
    """The extractor of the classifier in a folder, of the embedded one for "".

    Raises:
        ModelError: If the classifier cannot be loaded.
    """
    classifier = load_saved(ScenesClassifier, Path(where) if where else WEIGHTS / "classifier", "scenes")
    return ScenesExtractor(classifier.to(device))
