"""Speaker similarity: the cosine between the embeddings of two voices."""

from __future__ import annotations

from typing import Any

from mmspec.errors import ArgumentError
from mmspec.metrics.features import Features, read_features, same_width
from mmspec.metrics.image.cmmd import unit


def speaker_similarity(generated: Any, reference: Any) -> Features:
    """One cosine per recording, float64 [N] in -1..1.

    Args:
        generated: Embeddings [N, D] of a speaker-verification model, row by row of the same voice.
        reference: Embeddings [N, D] of a speaker-verification model, row by row of the same voice.

    Raises:
        ArgumentError: As `read_features`, for sets of different shape, or an embedding of length 0.
    """
    x, y = read_features(generated, "generated"), read_features(reference, "reference")
    same_width(x, y, ("generated", "reference"))
    if len(x) != len(y):
        raise ArgumentError(f"generated has {len(x)} samples, reference has {len(y)}; there must be one for each")
    return (unit(x, "generated") * unit(y, "reference")).sum(1).clip(-1.0, 1.0)
