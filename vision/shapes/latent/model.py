"""The embedded model of latents: the discrete model's transformers, with latents as input."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.vision.llamagen.transformer import LlamaGenTransformer
from mmspec.vision.shapes.config import WEIGHTS
from mmspec.vision.shapes.latent.head import LatentEmbedding


def latent_trunk(gpt: LlamaGenTransformer, codes: Tensor) -> Any:
    """The transformer with latents [B, W, D] instead of tokens as input; it shares the weights."""
    trunk = copy.copy(gpt)
    trunk._modules = dict(gpt._modules)
    trunk.tok_embeddings = LatentEmbedding(codes.to(gpt.device), gpt.tok_embeddings.weight.detach())  # type: ignore[assignment]
    return trunk


def load(*, device: str = "cpu", dtype: torch.dtype = torch.float32, weights: Path = WEIGHTS) -> Any:
    """The pipeline of latents.

    Args:
        device: Where to put the weights.
        dtype: The type of the weights.
        weights: The folder of the discrete model's pipeline.
    """
    from mmspec.vision.shapes.fsq_tokenizer import FSQTokenizer
    from mmspec.vision.shapes.latent.pipeline import LatentShapes
    from mmspec.vision.shapes.text_encoder import CaptionEncoder

    def component(kind: Any, folder: str) -> Any:
        return kind.from_folder(weights / folder, dtype).to(device)

    tokenizer = component(FSQTokenizer, "vqvae")
    codes = tokenizer.codebook().float()
    trunks = [
        latent_trunk(component(LlamaGenTransformer, name), codes) for name in ("transformer", "draft_transformer")
    ]
    return LatentShapes(trunks[0], trunks[1], tokenizer, component(CaptionEncoder, "text_encoder"))
