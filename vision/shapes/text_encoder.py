"""Text encoders that parse prompts and have no trained weights; that of the shapes model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from mmspec.vision.component import Component, stores_arguments
from mmspec.vision.shapes.domain import CONDITION_SLOTS, FEATURE_DIM, features
from mmspec.vision.shapes.grammar import parse


class GrammarEncoder(Component):
    """Converts prompts of a grammar to features [B, T, C]: T condition slots, C values of all caption slots.

    Raises:
        ValueError: If it was saved for another number of slots or values.
    """

    sizes: ClassVar[tuple[int, int]]
    scale: Tensor

    def __init__(self, slots: int, feature_dim: int) -> None:
        super().__init__()
        if (slots, feature_dim) != self.sizes:
            raise ValueError(
                f"the text encoder was saved for {slots} slots of {feature_dim} values; "
                f"this version has {self.sizes[0]} of {self.sizes[1]}"
            )
        # A model without tensors has no dtype and no device, and cannot be saved.
        self.register_buffer("scale", torch.ones(1))

    def features(self, prompts: Sequence[str]) -> Tensor:
        """The features float32 [B, T, C] of prompts."""
        raise NotImplementedError

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Features [B, T, C] in the dtype of the module, and a mask int64 [B, T] of ones: no slot is padding."""
        embeds = self.features(prompts).to(self.scale) * self.scale
        return embeds, torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device)


class CaptionEncoder(GrammarEncoder):
    """The encoder of captions of shapes, with 4 condition slots."""

    saved_as = "ShapesTextEncoder"
    sizes = CONDITION_SLOTS, FEATURE_DIM

    @stores_arguments
    def __init__(self, slots: int = CONDITION_SLOTS, feature_dim: int = FEATURE_DIM) -> None:
        super().__init__(slots, feature_dim)

    def features(self, prompts: Sequence[str]) -> Tensor:
        return features([parse(prompt) for prompt in prompts])
