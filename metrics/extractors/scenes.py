"""Features of `scenes`: the last hidden layer of its classifier, the mean of an image's quadrants."""

from __future__ import annotations

from pathlib import Path

from mmspec.metrics.extractors.classifier import ClassifierExtractor
from mmspec.metrics.extractors.pretrained import load_saved
from mmspec.vision.scenes.classifier import ScenesClassifier
from mmspec.vision.scenes.config import WEIGHTS


def load(where: str, device: str) -> ClassifierExtractor:
    """The extractor of the classifier in a folder, of the embedded one for "".

    Raises:
        ModelError: If the classifier cannot be loaded.
    """
    classifier = load_saved(ScenesClassifier, Path(where) if where else WEIGHTS / "classifier", "scenes")
    return ClassifierExtractor("scenes", classifier.to(device))
