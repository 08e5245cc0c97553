"""Features of `shapes`: the last hidden layer of its classifier, which runs on the CPU."""

from __future__ import annotations

from pathlib import Path

from mmspec.metrics.extractors.classifier import ClassifierExtractor
from mmspec.metrics.extractors.pretrained import load_saved
from mmspec.vision.shapes.classifier import ShapesClassifier
from mmspec.vision.shapes.config import WEIGHTS


def load(where: str, device: str) -> ClassifierExtractor:
    """The extractor of the classifier in a folder, of the embedded one for "".

    Raises:
        ModelError: If the classifier cannot be loaded.
    """
    return ClassifierExtractor("shapes", load_classifier(Path(where)) if where else embedded_classifier())


def embedded_classifier() -> ShapesClassifier:
    """The classifier that ships with `shapes`, on the CPU in float32."""
    return load_classifier(WEIGHTS / "classifier")


def load_classifier(folder: Path) -> ShapesClassifier:
    """The classifier in a folder that `save_pretrained` wrote.

    Raises:
        ModelError: If there is none.
    """
    return load_saved(ShapesClassifier, folder, "shapes")
