"""Features of the classifiers that ship with the embedded image models, and work offline."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mmspec.errors import ArgumentError
from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.features import Features
from mmspec.vision.shapes.pixels import to_tensor


class ClassifierExtractor:
    """The last hidden layer of a classifier of captions, for images of its size.

    Args:
        name: Of the model whose images it reads.
        classifier: A `ShapesClassifier` or `ScenesClassifier`.
    """

    def __init__(self, name: str, classifier: Any) -> None:
        self.name = name
        self.classifier = classifier.eval()
        self.fingerprint = fingerprint_of(self.classifier)

    @torch.no_grad()
    def __call__(self, images: Images) -> Features:
        """Features float64 [B, hidden] of images uint8 [B, side, side, 3].

        Raises:
            ArgumentError: If the images have another size.
        """
        side = self.classifier.image_size
        if images.shape[1:] != (side, side, 3):
            raise ArgumentError(
                f"extractor {self.name!r} reads images of {side}x{side} pixels, not {list(images.shape[1:3])}"
            )
        found = self.classifier.features(to_tensor(images).to(self.classifier.device))
        return np.asarray(found.double().cpu().numpy())
