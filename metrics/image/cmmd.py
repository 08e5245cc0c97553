"""CMMD (Jayasumana et al. 2024): MMD under a Gaussian kernel between CLIP embeddings; needs no Gaussian features.

The published numbers come from CLIP ViT-L/14 at 336 pixels, embeddings scaled to length 1, sigma 10, and the estimate
that includes every sample's distance to itself, times 1000. Those are the defaults here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features, as_features, check_same_width, square_distances, unit_length
from mmspec.metrics.metric import DistanceMetric

SCALE = 1000
NAMES = ("generated", "reference")


def cmmd(generated: Any, reference: Any, sigma: float = 10.0, unbiased: bool = False) -> float:
    """1000 times the squared MMD of two sets of embeddings, which are scaled to length 1 first.

    Args:
        generated: Embeddings [N, D].
        reference: Embeddings [M, D].
        sigma: The kernel is exp(-|x - y|^2 / (2 sigma^2)).
        unbiased: Leave out the distance of a sample to itself. The published estimate includes it, so that it is above
            0 and grows a little when samples are few.

    Raises:
        ArgumentError: If `as_features` raises it (each side needs two samples), if an embedding has length 0, or if
            sigma is not above 0.
    """
    if not sigma > 0:
        raise ArgumentError(f"sigma={sigma} is not allowed; it must be above 0")
    x = unit_length(as_features(generated, NAMES[0], least=2), NAMES[0])
    y = unit_length(as_features(reference, NAMES[1], least=2), NAMES[1])
    check_same_width(x, y, NAMES)
    within = 0.0
    for z in (x, y):
        # 1 - kernel, by expm1: the kernel itself is so near 1 that differences of it would have few digits left.
        apart = -np.expm1(-square_distances(z, z) / (2 * sigma**2))
        np.fill_diagonal(apart, 0.0)
        within += apart.sum() / (len(z) * (len(z) - 1) if unbiased else len(z) ** 2)
    between = -np.expm1(-square_distances(x, y) / (2 * sigma**2))
    return float(SCALE * (2 * between.mean() - within))


class ClipMMD(DistanceMetric):
    """`cmmd` over the embeddings of CLIP."""

    def distance(self, generated: Features, reference: Features) -> float:
        return cmmd(generated, reference)


CMMD = ClipMMD("cmmd", "clip")
