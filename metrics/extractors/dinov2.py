"""DINOv2's features, whose Frechet distance agrees better with human judgment (Stein et al. 2023)."""

from __future__ import annotations

import numpy as np
import torch

from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.pretrained import PretrainedExtractor, pixel_values
from mmspec.metrics.features import Features


class Dinov2Extractor(PretrainedExtractor):
    """The normalized class token of a `Dinov2Model`; published distances use facebook/dinov2-large."""

    name = "dinov2"
    model_class = "Dinov2Model"

    @torch.no_grad()
    def __call__(self, images: Images) -> Features:
        """Features float64 [B, D]."""
        hidden = self.model(pixel_values=pixel_values(self.processor, images, self.model.device)).last_hidden_state
        return np.asarray(hidden[:, 0].double().cpu().numpy())
