"""CLIP score (Hessel et al. 2021): how well an image matches its prompt, by CLIP."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.extractors.clip import ClipExtractor
from mmspec.metrics.features import Features, as_features, check_same_width, unit_length
from mmspec.metrics.metric import MeanMetric, SampleBatch


def clip_scores(images: Any, texts: Any, weight: float = 100.0) -> Features:
    """One score per sample: `weight` times the cosine of the two embeddings, at least 0.

    Each sample is cut off at 0, as in the paper, not their mean. The paper's weight is 2.5; most reports use 100.

    Args:
        images: Embeddings [N, D] in CLIP's common space.
        texts: Embeddings [N, D] of the prompts, in the same order.

    Returns:
        float64 [N].

    Raises:
        ArgumentError: If `as_features` raises it, if the shapes differ, or if an embedding has length 0.
    """
    x, y = as_features(images, "images"), as_features(texts, "texts")
    check_same_width(x, y, ("images", "texts"))
    if len(x) != len(y):
        raise ArgumentError(f"images has {len(x)} samples, texts has {len(y)}; there must be one text per image")
    return weight * np.maximum((unit_length(x, "images") * unit_length(y, "texts")).sum(1), 0.0)


class ClipScore(MeanMetric):
    """The mean of `clip_scores`."""

    kind = "image"
    extractor = "clip"
    needs_prompts = True
    higher_is_better = True

    def scores(self, samples: SampleBatch, extractor: ClipExtractor) -> Features:
        return clip_scores(samples.features(extractor), extractor.texts(samples.prompts))


CLIP_SCORE = ClipScore("clip")
