"""The text encoder of the scenes model, which parses prompts and has no trained weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmspec.vision.component import stores_arguments
from mmspec.vision.scenes.domain import CONDITION_SLOTS, FEATURE_DIM, features
from mmspec.vision.scenes.grammar import parse
from mmspec.vision.shapes.text_encoder import GrammarEncoder


class SceneEncoder(GrammarEncoder):
    """The encoder of prompts of scenes, with 5 condition slots."""

    saved_as = "ScenesTextEncoder"
    sizes = CONDITION_SLOTS, FEATURE_DIM

    @stores_arguments
    def __init__(self, slots: int = CONDITION_SLOTS, feature_dim: int = FEATURE_DIM) -> None:
        super().__init__(slots, feature_dim)

    def features(self, prompts: Sequence[str]) -> Tensor:
        return features([parse(prompt) for prompt in prompts])
