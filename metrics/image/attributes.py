"""Attribute accuracy on `shapes`: which of the attributes stated by a prompt its image shows, by the classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.errors import ArgumentError
from mmspec.metrics.extractors.shapes import ShapesExtractor
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch
from mmspec.vision.shapes.classifier import ShapesClassifier, score_captions
from mmspec.vision.shapes.domain import IMAGE_SIZE
from mmspec.vision.shapes.grammar import parse
from mmspec.vision.shapes.render import to_tensor


def attribute_scores(
    images: NDArray[np.uint8], prompts: Sequence[str], classifier: ShapesClassifier
) -> tuple[Features, Features]:
    """Scores each image against its prompt.

    Args:
        images: uint8 [N, 64, 64, 3].
        prompts: One per image.
        classifier: Reads a caption off an image.

    Returns:
        Two arrays float64 [N]: the share of the stated attributes that the image shows; 1 where it shows all of them,
        else 0.

    Raises:
        ArgumentError: If the shapes differ from these.
        PromptError: If a prompt is not one of `shapes`.
    """
    if images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3) or len(images) != len(prompts):
        raise ArgumentError(
            f"images of shape {list(images.shape)} for {len(prompts)} prompts are not allowed; "
            f"there must be [{len(prompts)}, {IMAGE_SIZE}, {IMAGE_SIZE}, 3]"
        )
    predicted = classifier.predict(to_tensor(images))
    scores: list[dict[str, Any]] = [
        score_captions([one], [parse(prompt)]) for one, prompt in zip(predicted, prompts, strict=True)
    ]
    return np.array([s["attributes"] for s in scores]), np.array([s["captions"] for s in scores])


class AttributeAccuracy(MeanMetric):
    """The mean of one of the two scores of `attribute_scores`.

    Args:
        name: "attributes" or "captions".
    """

    kind = "image"
    extractor = "shapes"
    needs_prompts = True
    higher_is_better = True
    is_share = True

    def check_prompts(self, prompts: Sequence[str]) -> None:
        for prompt in prompts:
            parse(prompt)

    def scores(self, samples: SampleBatch, extractor: ShapesExtractor) -> Features:
        attributes, captions = samples.cached(
            "attribute scores",
            extractor,
            lambda: attribute_scores(samples.images, samples.prompts, extractor.classifier),
        )
        return attributes if self.name == "attributes" else captions


ATTRIBUTES = AttributeAccuracy("attributes")
CAPTIONS = AttributeAccuracy("captions")
