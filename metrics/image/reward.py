"""How much people would prefer an image for its prompt: ImageReward (Xu et al. 2023) and HPSv3 (Ma et al. 2025).

Both are computed as by the packages of these names.
"""

from __future__ import annotations

from mmspec.metrics.extractors.hpsv3 import HPSv3
from mmspec.metrics.extractors.image_reward import ImageReward
from mmspec.metrics.features import Features
from mmspec.metrics.metric import MeanMetric, SampleBatch


class RewardMetric(MeanMetric):
    """The mean reward.

    That of ImageReward is 0 at the mean of the authors' data, with a deviation of 1; papers print values of about 0 to
    15 of HPSv3.

    Args:
        name: "imagereward" or "hpsv3", which is also the extractor's name.
    """

    kind = "image"
    needs_prompts = True
    higher_is_better = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.extractor = name

    def scores(self, samples: SampleBatch, extractor: ImageReward | HPSv3) -> Features:
        return extractor.rewards(samples.images, samples.prompts)


IMAGE_REWARD, HPSV3 = RewardMetric("imagereward"), RewardMetric("hpsv3")
