"""Features of `shapes`: what its classifier sees just before it names things. Ships with mmspec, works offline."""

from __future__ import annotations

import numpy as np
import torch

from mmspec.errors import ArgumentError
from mmspec.metrics.extractors.extractor import Images, fingerprint_of
from mmspec.metrics.features import Features
from mmspec.vision.shapes.classifier import ShapesClassifier
from mmspec.vision.shapes.domain import IMAGE_SIZE
from mmspec.vision.shapes.render import to_tensor


class ShapesExtractor:
    """The last hidden layer of a `ShapesClassifier`; images are 64x64.

    Args:
        classifier: Which one; None is the embedded one.
    """

    name = "shapes"

    def __init__(self, classifier: ShapesClassifier | None = None) -> None:
        if classifier is None:
            from mmspec.metrics.image.attributes import embedded_classifier

            classifier = embedded_classifier()
        self.classifier = classifier.eval()
        self.fingerprint = fingerprint_of(classifier)

    @torch.no_grad()
    def __call__(self, images: Images) -> Features:
        """Float64 [B, hidden].

        Raises:
            ArgumentError: For images of another size.
        """
        if images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3):
            raise ArgumentError(
                f"extractor 'shapes' reads images of {IMAGE_SIZE}x{IMAGE_SIZE} pixels, not {list(images.shape[1:3])}"
            )
        return np.asarray(self.classifier.body(to_tensor(images)).double().numpy())
