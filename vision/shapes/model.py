"""The embedded image model, from the weights in the package."""

from __future__ import annotations

from pathlib import Path

import torch

from mmspec.vision.llamagen.embedded import EmbeddedLlamaGen
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.text_encoder import CaptionEncoder


def load(*, device: str = "cpu", dtype: torch.dtype = torch.float32, weights: Path = WEIGHTS) -> EmbeddedLlamaGen:
    """The shapes pipeline.

    Args:
        device: Where to put the weights.
        dtype: The type of the weights.
        weights: The folder of the pipeline.
    """
    return EmbeddedLlamaGen.from_folder(weights, CaptionEncoder, device, dtype)
