"""The embedded pipeline, from the weights that ship with the package."""

from __future__ import annotations

from pathlib import Path

import torch

# diffusers finds the classes of saved components only in modules that are already imported.
import mmspec.vision.shapes.text
import mmspec.vision.shapes.tokenizer  # noqa: F401
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.shapes.config import WEIGHTS


def load(*, device: str = "cpu", dtype: torch.dtype = torch.float32, weights: Path = WEIGHTS) -> LlamaGenPipeline:
    """The shapes pipeline on `device` in `dtype`; `weights` are those that ship unless others were trained."""
    # diffusers complains on stderr when it has to find out for itself that accelerate is not installed.
    return LlamaGenPipeline.from_pretrained(weights, dtype=dtype, low_cpu_mem_usage=False).to(device)
