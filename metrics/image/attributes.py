"""Attribute accuracy on `shapes`: which of the things a prompt states its image shows, read by the classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.errors import ArgumentError, ModelError
from mmspec.metrics.features import Features
from mmspec.vision.shapes.classifier import ShapesClassifier, score_captions
from mmspec.vision.shapes.domain import IMAGE_SIZE
from mmspec.vision.shapes.grammar import parse
from mmspec.vision.shapes.render import to_tensor


def attribute_scores(
    images: NDArray[np.uint8], prompts: Sequence[str], classifier: ShapesClassifier
) -> tuple[Features, Features]:
    """Per image, float64 [N]: the share of stated attributes that it shows, and 1 where it shows all of them.

    Args:
        images: uint8 [N, 64, 64, 3].
        prompts: One for each.

    Raises:
        ArgumentError: For other shapes.
        PromptError: For a prompt that is none of `shapes`.
    """
    if images.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3) or len(images) != len(prompts):
        raise ArgumentError(
            f"images of shape {list(images.shape)} for {len(prompts)} prompts are not allowed; "
            f"there must be [{len(prompts)}, {IMAGE_SIZE}, {IMAGE_SIZE}, 3]"
        )
    seen = classifier.predict(to_tensor(images))
    scores: list[dict[str, Any]] = [
        score_captions([one], [parse(prompt)]) for one, prompt in zip(seen, prompts, strict=True)
    ]
    return np.array([s["attributes"] for s in scores]), np.array([s["captions"] for s in scores])


def embedded_classifier() -> ShapesClassifier:
    """The classifier that ships with `shapes`, on the CPU in float32."""
    from mmspec.vision.shapes.config import WEIGHTS

    return read_classifier(WEIGHTS / "classifier")


def read_classifier(folder: Path) -> ShapesClassifier:
    """A classifier from the folder that it was exported to.

    Raises:
        ModelError: When there is none.
    """
    try:
        # diffusers complains on stderr when it has to find out for itself that accelerate is not installed.
        return ShapesClassifier.from_pretrained(folder, torch_dtype=torch.float32, low_cpu_mem_usage=False).eval()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"extractor 'shapes': cannot load a classifier from '{folder}': {reason}") from None
