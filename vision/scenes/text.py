"""The text encoder of the scenes model, which parses prompts and has no trained weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin

from mmspec.vision.scenes.domain import CONDITION_SLOTS, FEATURE_DIM, features
from mmspec.vision.scenes.grammar import parse


class ScenesTextEncoder(ModelMixin, ConfigMixin):
    """Converts prompts to features [B, T, C]: T = 5 condition slots, C values of all caption slots.

    Raises:
        ValueError: If it was saved for another number of slots or values.
    """

    scale: torch.Tensor

    @register_to_config
    def __init__(self, slots: int = CONDITION_SLOTS, feature_dim: int = FEATURE_DIM) -> None:
        super().__init__()
        if (slots, feature_dim) != (CONDITION_SLOTS, FEATURE_DIM):
            raise ValueError(
                f"the text encoder was saved for {slots} slots of {feature_dim} values; "
                f"this version has {CONDITION_SLOTS} of {FEATURE_DIM}"
            )
        # A model without tensors has no dtype and no device, and cannot be saved.
        self.register_buffer("scale", torch.ones(1))

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [B, T, C] in the dtype of the module, and a mask int64 [B, T] of ones: no slot is padding."""
        rows = features([parse(prompt) for prompt in prompts])
        embeds = rows.to(self.scale) * self.scale
        return embeds, torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device)
