"""Attribute accuracy: which of the attributes stated by a prompt its image shows, by the classifier of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError, unknown_name
from mmspec.metrics.extractors.registry import CAPTION_READERS
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch
from mmspec.vision.shapes.pixels import to_tensor


class CaptionClassifier(Protocol):
    """Reads a caption off an image; `ShapesClassifier` and `ScenesClassifier` do."""

    image_size: int

    def score_each(self, images: torch.Tensor, prompts: Sequence[str]) -> list[dict[str, float]]:
        """Scores of images [B, 3, H, W] in [-1, 1], among them `attributes` and `captions`."""
        ...


class CaptionReader(Protocol):
    """An extractor with the classifier of a model."""

    classifier: CaptionClassifier


def attribute_scores(
    images: NDArray[np.uint8], prompts: Sequence[str], classifier: CaptionClassifier
) -> tuple[Features, Features]:
    """Scores each image against its prompt.

    Args:
        images: uint8 [N, size, size, 3], in the classifier's size.
        prompts: One per image.
        classifier: Reads a caption off an image.

    Returns:
        Two arrays float64 [N]: the share of the stated attributes that the image shows; 1 where it shows all of them,
        else 0.

    Raises:
        ArgumentError: If the shapes differ from these.
        PromptError: If a prompt does not follow the model's grammar.
    """
    size = classifier.image_size
    if images.shape[1:] != (size, size, 3) or len(images) != len(prompts):
        raise ArgumentError(
            f"images of shape {list(images.shape)} for {len(prompts)} prompts are not allowed; "
            f"there must be [{len(prompts)}, {size}, {size}, 3]"
        )
    scores = classifier.score_each(to_tensor(images), prompts)
    return np.array([s["attributes"] for s in scores]), np.array([s["captions"] for s in scores])


_PARSERS: Mapping[str, str] = {name: f"mmspec.vision.{name}.grammar:parse" for name in CAPTION_READERS}


class AttributeAccuracy(MeanMetric):
    """The mean of one of the two scores of `attribute_scores`.

    Args:
        score: "attributes" or "captions".
        extractor: Whose classifier reads the images.
        name: None is the score's, `@` and the extractor's name.

    Raises:
        UnknownNameError: If the extractor reads no captions.
    """

    kind = "image"
    needs_prompts = True
    higher_is_better = True
    is_share = True

    def __init__(self, score: str, extractor: str, name: str | None = None) -> None:
        super().__init__(name or f"{score}@{extractor}")
        if extractor not in CAPTION_READERS:
            raise unknown_name("extractor", extractor, CAPTION_READERS)
        self.score = score
        self.extractor = extractor

    def check_prompts(self, prompts: Sequence[str], weights: Mapping[str, str]) -> None:
        parse = resolve(_PARSERS[self.extractor])
        for prompt in prompts:
            parse(prompt)

    def scores(self, samples: SampleBatch, extractor: CaptionReader) -> Features:
        attributes, captions = samples.cached(
            "attribute scores",
            extractor,
            lambda: attribute_scores(samples.images, samples.prompts, extractor.classifier),
        )
        return attributes if self.score == "attributes" else captions


def attributes_by(extractor: str) -> AttributeAccuracy:
    """The metric `attributes@EXTRACTOR`."""
    return AttributeAccuracy("attributes", extractor)


def captions_by(extractor: str) -> AttributeAccuracy:
    """The metric `captions@EXTRACTOR`."""
    return AttributeAccuracy("captions", extractor)


ATTRIBUTES = AttributeAccuracy("attributes", "shapes", "attributes")
CAPTIONS = AttributeAccuracy("captions", "shapes", "captions")
