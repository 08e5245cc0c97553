"""Speaker similarity: the cosine between the embeddings of two voices."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmspec.errors import ArgumentError, unknown_name
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.extractors.registry import VOICE_ENCODERS
from mmspec.metrics.features import Features, as_features, check_same_width, unit_length
from mmspec.metrics.gaussian import Gaussian
from mmspec.metrics.metric import FeatureMetric, Groups, Rows, pair_references, resample_mean
from mmspec.metrics.reference import Reference


def speaker_similarity(generated: Any, reference: Any) -> Features:
    """One cosine per recording, float64 [N] in -1..1.

    Args:
        generated: Embeddings [N, D] of a speaker-verification model.
        reference: Embeddings [N, D], in row i of the voice that row i of `generated` should have.

    Raises:
        ArgumentError: If `as_features` raises it, if the shapes differ, or if an embedding has length 0.
    """
    x, y = as_features(generated, "generated"), as_features(reference, "reference")
    check_same_width(x, y, ("generated", "reference"))
    if len(x) != len(y):
        raise ArgumentError(f"generated has {len(x)} samples, reference has {len(y)}; there must be one for each")
    return (unit_length(x, "generated") * unit_length(y, "reference")).sum(1).clip(-1.0, 1.0)


class SpeakerSimilarity(FeatureMetric):
    """The mean of `speaker_similarity` with the reference recording of the same prompt, or with the only one."""

    needs_reference = True
    higher_is_better = True

    def make_reference(self, rows: Rows, extractor: str) -> Any:
        if len(rows) > 1:
            return super().make_reference(rows, extractor)
        # One recording of the voice is enough; its Gaussian is a point.
        features, width = np.stack(rows), len(rows[0])
        return Reference(Gaussian(features[0], np.zeros((width, width)), 1), features, extractor)

    def measure(self, rows: Rows, reference: Reference, groups: Groups = None) -> Estimate:
        voices = pair_references(self.name, list(self._features_of(reference)), len(rows))
        return resample_mean(speaker_similarity(np.stack(rows), np.stack(voices)), groups)


def speaker_by(extractor: str) -> SpeakerSimilarity:
    """The metric `speaker@EXTRACTOR`.

    Args:
        extractor: The extractor's name.

    Raises:
        UnknownNameError: If it embeds no voices.
    """
    if extractor not in VOICE_ENCODERS:
        raise unknown_name("extractor", extractor, VOICE_ENCODERS)
    return SpeakerSimilarity(f"speaker@{extractor}", extractor)


SPEAKER = SpeakerSimilarity("speaker", "wavlm")
