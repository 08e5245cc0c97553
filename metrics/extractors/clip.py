"""CLIP's common space of images and texts, for CLIP score and CMMD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mmspec.metrics.extractors.image import Images
from mmspec.metrics.extractors.pretrained import PretrainedExtractor, pixel_values
from mmspec.metrics.features import Features


class ClipExtractor(PretrainedExtractor):
    """A `CLIPModel` with its processor; published CMMD uses openai/clip-vit-large-patch14-336."""

    name: str = "clip"
    model_class = "CLIPModel"
    reads_text = True

    @torch.no_grad()
    def __call__(self, images: Images) -> Features:
        """Projected embeddings of images, float64 [B, D], not normalized."""
        pixels = pixel_values(self.processor, images, self.model.device)
        return projected_embedding(self.model.get_image_features(pixel_values=pixels))

    @torch.no_grad()
    def texts(self, prompts: Sequence[str], batch: int = 64) -> Features:
        """Projected embeddings of prompts, float64 [B, D]; text beyond CLIP's context (77 tokens) is cut off."""
        longest = self.model.config.text_config.max_position_embeddings
        parts = []
        for first in range(0, len(prompts), batch):
            tokens = self.tokenizer(
                list(prompts[first : first + batch]),
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            ).to(self.model.device)
            parts.append(projected_embedding(self.model.get_text_features(**tokens)))
        return np.concatenate(parts)


def projected_embedding(output: Any) -> Features:
    """The projected embeddings in an output of transformers, float64 [B, D]."""
    # Some releases of transformers return the projected embedding itself, others in a field named for the unprojected.
    found = output if isinstance(output, torch.Tensor) else output.pooler_output
    return np.asarray(found.double().cpu().numpy())
