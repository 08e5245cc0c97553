"""CLIP score (Hessel et al. 2021): how well an image fits its prompt, as CLIP sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features, read_features, same_width
from mmspec.metrics.image.cmmd import unit


def clip_scores(images: Any, texts: Any, weight: float = 100.0) -> Features:
    """One score per sample, float64 [N]: `weight` times the cosine of the two embeddings, at least 0.

    Each sample is cut off at 0, as in the paper, not their mean. The paper's weight is 2.5; 100 is what most report.

    Args:
        images: Embeddings [N, D] in CLIP's common space, row i of one belonging to row i of the other.
        texts: As for `images`.

    Raises:
        ArgumentError: As `read_features`, for sets of different shape, or an embedding of length 0.
    """
    x, y = read_features(images, "images"), read_features(texts, "texts")
    same_width(x, y, ("images", "texts"))
    if len(x) != len(y):
        raise ArgumentError(f"images has {len(x)} samples, texts has {len(y)}; there must be one text per image")
    return weight * np.maximum((unit(x, "images") * unit(y, "texts")).sum(1), 0.0)
