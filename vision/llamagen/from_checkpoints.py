"""Pipelines from original LlamaGen files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.errors import ModelError
from mmspec.vision.llamagen.checkpoint import load_gpt
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.llamagen.tokenizer import load_tokenizer

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
# The published samplers' settings.
GUIDANCE = {"c2i": 4.0, "t2i": 7.5}
TOP_K = {"c2i": 2000, "t2i": 1000}


def is_checkpoint(path: Path) -> bool:
    """Whether `path` looks like an original file, or a folder with one."""
    if path.is_dir():
        return not (path / "model_index.json").exists() and any(f.suffix in SUFFIXES for f in path.iterdir())
    return path.suffix in SUFFIXES and path.is_file()


def from_checkpoints(
    gpt: str | Path,
    tokenizer: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LlamaGenPipeline:
    """A pipeline from a transformer's file and, for pixels, a tokenizer's.

    Text models come without their T5 (`google/flan-t5-xl`): pass `prompt_embeds`, or register `text_encoder` and
    `tokenizer` with the pipeline.

    Raises:
        ModelError: See `load_gpt` and `load_tokenizer`.
        ArgumentError: See `load_gpt` and `load_tokenizer`.
    """
    transformer = load_gpt(gpt, config).to(dtype)
    vqvae = None if tokenizer is None else load_tokenizer(tokenizer).to(dtype)
    if vqvae is not None and vqvae.config.num_vq_embeddings != transformer.config.vocab_size:
        raise ModelError(
            f"tokenizer {str(tokenizer)!r} has {vqvae.config.num_vq_embeddings} codes, the transformer "
            f"{transformer.config.vocab_size}; they do not belong together"
        )
    kind = transformer.config.model_type
    return LlamaGenPipeline(transformer, vqvae, guidance_scale=GUIDANCE[kind], top_k=TOP_K[kind]).to(device)
