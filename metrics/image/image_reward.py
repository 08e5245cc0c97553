"""ImageReward (Xu et al. 2023): how much people would prefer an image for its prompt, as the package of that name."""

from __future__ import annotations

from mmspec.metrics.extractors.image_reward import ImageReward
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch


class ImageRewardMetric(MeanMetric):
    """The mean reward, of which 0 is the mean of the authors' data and 1 their deviation."""

    kind = "image"
    extractor = "imagereward"
    needs_prompts = True
    higher_is_better = True

    def scores(self, samples: SampleBatch, extractor: ImageReward) -> Features:
        return extractor.rewards(samples.images, samples.prompts)


IMAGE_REWARD = ImageRewardMetric("imagereward")
