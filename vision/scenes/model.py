"""The embedded scenes model, from the weights in the package."""

from __future__ import annotations

from pathlib import Path

import torch

from mmspec.vision.llamagen.embedded import EmbeddedLlamaGen
from mmspec.vision.scenes.config import WEIGHTS
from mmspec.vision.scenes.text_encoder import SceneEncoder


def load(*, device: str = "cpu", dtype: torch.dtype = torch.float32, weights: Path = WEIGHTS) -> EmbeddedLlamaGen:
    """The scenes pipeline.

    Args:
        device: Where to put the weights.
        dtype: The type of the weights.
        weights: The folder of the pipeline.
    """
    return EmbeddedLlamaGen.from_folder(weights, SceneEncoder, device, dtype)
