"""How much people would prefer an image for its prompt, by HPSv2 (Wu et al. 2023) and PickScore (Kirstain et al. 2023).

Both are cosines of a fine-tuned CLIP-H, of image and prompt. HPSv2 is printed as 100 times the cosine, as in papers
(the package `hpsv2` returns the cosine itself); PickScore as the model's scaled cosine, of which the authors take a
softmax over the candidates for one prompt.
"""

from __future__ import annotations

import numpy as np

from mmspec.metrics.extractors.preference import PreferenceExtractor
from mmspec.metrics.features import Features, unit_length
from mmspec.metrics.metric import MeanMetric, SampleBatch


class Preference(MeanMetric):
    """The mean of a preference score.

    Args:
        name: "hpsv2" or "pickscore", which is also the extractor's name.
        scale: What cosines are multiplied by; None for the model's own scale.
    """

    kind = "image"
    needs_prompts = True
    higher_is_better = True

    def __init__(self, name: str, scale: float | None) -> None:
        super().__init__(name)
        self.extractor = name
        self.scale = scale

    def scores(self, samples: SampleBatch, extractor: PreferenceExtractor) -> Features:
        images = unit_length(samples.features(extractor), "images")
        texts = unit_length(extractor.texts(samples.prompts), "prompts")
        scale = extractor.scale if self.scale is None else self.scale
        return np.asarray(scale * (images * texts).sum(1))


HPSV2 = Preference("hpsv2", 100.0)
PICKSCORE = Preference("pickscore", None)
