"""The embedded image model without diffusers, for commands."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from mmspec.vision.llamagen.generation import LlamaGenGenerator
from mmspec.vision.llamagen.ngram_tokens import NGramTokens
from mmspec.vision.llamagen.transformer import LlamaGenTransformer
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.fsq_tokenizer import FSQTokenizer
from mmspec.vision.shapes.text_encoder import CaptionEncoder


def load(*, device: str = "cpu", dtype: torch.dtype = torch.float32, weights: Path = WEIGHTS) -> LlamaGenGenerator:
    """The generator with the components and defaults of the pipeline that `mmspec.vision.shapes.model:load` returns.

    Args:
        device: Where to put the weights.
        dtype: The type of the weights.
        weights: The folder of the pipeline.
    """
    index = json.loads((weights / "model_index.json").read_text(encoding="utf-8"))
    return LlamaGenGenerator(
        LlamaGenTransformer.from_folder(weights / "transformer", dtype).to(device),
        FSQTokenizer.from_folder(weights / "vqvae", dtype).to(device),
        CaptionEncoder.from_folder(weights / "text_encoder", dtype).to(device),
        None,
        LlamaGenTransformer.from_folder(weights / "draft_transformer", dtype).to(device),
        NGramTokens.from_folder(weights / "table", dtype).to(device),
        {name: index[name] for name in ("temperature", "top_k", "top_p", "guidance_scale", "recipe")},
    )
