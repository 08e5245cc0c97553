"""The text encoder of the shapes model, which parses prompts and has no trained weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmspec.vision.component import Component, stores_arguments
from mmspec.vision.shapes.domain import CONDITION_SLOTS, FEATURE_DIM, features
from mmspec.vision.shapes.grammar import parse


class CaptionEncoder(Component):
    """Converts prompts to features [B, T, C]: T = 4 condition slots, C values of all caption slots.

    Raises:
        ValueError: If it was saved for another number of slots or values.
    """

    saved_as = "ShapesTextEncoder"
    scale: torch.Tensor

    @stores_arguments
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
