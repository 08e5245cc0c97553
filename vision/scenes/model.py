"""The embedded scenes model, from the weights in the package."""

from __future__ import annotations

from pathlib import Path

import torch

# diffusers finds the classes of saved components in imported modules only.
import mmspec.vision.scenes.text
import mmspec.vision.shapes.tokenizer  # noqa: F401
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.scenes.config import WEIGHTS


def load(*, device: str = "cpu", dtype: torch.dtype = torch.float32, weights: Path = WEIGHTS) -> LlamaGenPipeline:
    """The scenes pipeline.

    Args:
        device: Where to put the weights.
        dtype: The type of the weights.
        weights: The folder of the pipeline.
    """
    # Without this argument diffusers warns on stderr if accelerate is not installed.
    return LlamaGenPipeline.from_pretrained(weights, dtype=dtype, low_cpu_mem_usage=False).to(device)
