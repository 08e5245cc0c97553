"""CLAP score: how well a recording matches its prompt, by CLAP; the formula is that of CLIP score."""

from __future__ import annotations

from mmspec.metrics.extractors.clap import ClapExtractor
from mmspec.metrics.features import Features
from mmspec.metrics.image.clip_score import clip_scores
from mmspec.metrics.metric import MeanMetric, SampleBatch


class ClapScore(MeanMetric):
    """The mean of `mmspec.metrics.image.clip_score.clip_scores` over CLAP's embeddings."""

    kind = "audio"
    extractor = "clap"
    needs_prompts = True
    higher_is_better = True

    def scores(self, samples: SampleBatch, extractor: ClapExtractor) -> Features:
        return clip_scores(samples.features(extractor), extractor.texts(samples.prompts))


CLAP_SCORE = ClapScore("clap")
