"""CMMD (Jayasumana et al. 2024): MMD under a Gaussian kernel between CLIP embeddings; needs no Gaussian features.

The published numbers come from CLIP ViT-L/14 at 336 pixels, embeddings scaled to length 1, sigma 10, and the estimate
that counts every sample's distance to itself, times 1000. Those are the defaults here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features, read_features, same_width, square_distances

SCALE = 1000
NAMES = ("generated", "reference")


def cmmd(generated: Any, reference: Any, sigma: float = 10.0, unbiased: bool = False) -> float:
    """1000 times the squared MMD of embeddings [N, D] and [M, D], which are scaled to length 1 first.

    Args:
        sigma: The kernel is exp(-|x - y|^2 / (2 sigma^2)).
        unbiased: Leave out the distance of a sample to itself. The published estimate does not, so that it is above 0
            and grows a little when samples are few.

    Raises:
        ArgumentError: As `read_features` (two samples are needed), for an embedding of length 0, a sigma of 0.
    """
    if not sigma > 0:
        raise ArgumentError(f"sigma={sigma} is not allowed; it must be above 0")
    x = unit(read_features(generated, NAMES[0], least=2), NAMES[0])
    y = unit(read_features(reference, NAMES[1], least=2), NAMES[1])
    same_width(x, y, NAMES)
    within = 0.0
    for z in (x, y):
        # 1 - kernel, by expm1: the kernel itself is so near 1 that differences of it would have few digits left.
        apart = -np.expm1(-square_distances(z, z) / (2 * sigma**2))
        np.fill_diagonal(apart, 0.0)
        within += apart.sum() / (len(z) * (len(z) - 1) if unbiased else len(z) ** 2)
    between = -np.expm1(-square_distances(x, y) / (2 * sigma**2))
    return float(SCALE * (2 * between.mean() - within))


def unit(embeddings: Features, name: str) -> Features:
    """Embeddings scaled to length 1.

    Raises:
        ArgumentError: For one of length 0.
    """
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    empty = np.flatnonzero(lengths == 0)
    if len(empty):
        raise ArgumentError(f"{name} has an embedding of length 0 in sample {empty[0]}; it has no direction")
    return np.asarray(embeddings / lengths)
