"""UTMOS (Saeki et al. 2022): the naturalness of speech that listeners would hear, by the strong learner of UTMOS22."""

from __future__ import annotations

from mmspec.metrics.extractors.utmos import UTMOS as Network
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch


class UTMOSMetric(MeanMetric):
    """The mean of the predicted opinion score, from 1 to 5."""

    kind = "audio"
    extractor = "utmos"
    higher_is_better = True

    def scores(self, samples: SampleBatch, extractor: Network) -> Features:
        return extractor.scores(samples.audio)


UTMOS = UTMOSMetric("utmos")
