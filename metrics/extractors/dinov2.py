"""DINOv2's features, whose Frechet distance agrees better with human judgment (Stein et al. 2023)."""

from __future__ import annotations

import numpy as np
import torch

from mmspec.metrics.extractors.extractor import fingerprint_of
from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.pretrained import load_pretrained, pixel_values
from mmspec.metrics.features import Features


class Dinov2Extractor:
    """The normalized class token of a `Dinov2Model`; published distances use facebook/dinov2-large.

    Args:
        where: A folder or Hub id with model and image processor.
        device: Where the network runs.

    Raises:
        ModelError: If one of them cannot be loaded.
    """

    name = "dinov2"

    def __init__(self, where: str, device: str = "cpu") -> None:
        from transformers import AutoImageProcessor, Dinov2Model

        self.model = load_pretrained(Dinov2Model, where, self.name).float().eval().to(device)
        self.processor = load_pretrained(AutoImageProcessor, where, self.name)
        self.fingerprint = fingerprint_of(self.model)

    @torch.no_grad()
    def __call__(self, images: Images) -> Features:
        """Features float64 [B, D]."""
        hidden = self.model(pixel_values=pixel_values(self.processor, images, self.model.device)).last_hidden_state
        return np.asarray(hidden[:, 0].double().cpu().numpy())
