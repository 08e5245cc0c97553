"""HPSv3 (Ma et al. 2025): how much people would prefer an image for its prompt, as the package of that name."""

from __future__ import annotations

from mmspec.metrics.extractors.hpsv3 import HPSv3
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch


class HPSv3Metric(MeanMetric):
    """The mean reward; papers print values of about 0 to 15."""

    kind = "image"
    extractor = "hpsv3"
    needs_prompts = True
    higher_is_better = True

    def scores(self, samples: SampleBatch, extractor: HPSv3) -> Features:
        return extractor.rewards(samples.images, samples.prompts)


HPSV3 = HPSv3Metric("hpsv3")
