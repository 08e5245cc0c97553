"""Pipelines from original LlamaGen checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.errors import ModelError
from mmspec.media.listing import list_files
from mmspec.vision.llamagen.checkpoint import cast, load_gpt
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.llamagen.tokenizer import load_tokenizer

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")
# The published sampling parameters.
GUIDANCE = {"c2i": 4.0, "t2i": 7.5}
TOP_K = {"c2i": 2000, "t2i": 1000}


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a file with the suffix of a checkpoint, or a folder with one that is not a saved pipeline."""
    if path.is_dir():
        return not (path / "model_index.json").exists() and bool(list_files(path, SUFFIXES))
    return path.suffix in SUFFIXES and path.is_file()


def from_checkpoints(
    gpt: str | Path,
    tokenizer: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype | str = torch.float32,
) -> LlamaGenPipeline:
    """A pipeline from the checkpoints of a transformer and, for pixels, of a tokenizer.

    Checkpoints of text-conditional models do not contain their T5 (`google/flan-t5-xl`): register `text_encoder` and
    `tokenizer` with the pipeline, or pass `prompt_embeds`.

    Args:
        gpt: The file of the transformer, or a folder with it; see `load_gpt`.
        tokenizer: The file of the tokenizer; without one a call returns tokens only.
        config: Original argument names; see `load_gpt`.
        device: Where to put the pipeline.
        dtype: The type of the transformer's weights, or "auto" for that of the file. The tokenizer stays in float32, as
            in the original; convert `pipe.vqvae` for another type.

    Raises:
        ModelError: If a file cannot be read, or does not fit its model, or the two have different numbers of codes.
        ArgumentError: If the number of heads or the grid is unknown.
    """
    transformer = cast(load_gpt(gpt, config), dtype)
    vqvae = None if tokenizer is None else load_tokenizer(tokenizer)
    if vqvae is not None and vqvae.config.num_vq_embeddings != transformer.config.vocab_size:
        raise ModelError(
            f"tokenizer {str(tokenizer)!r} has {vqvae.config.num_vq_embeddings} codes, the transformer "
            f"{transformer.config.vocab_size}; they do not belong together"
        )
    kind = transformer.config.model_type
    return LlamaGenPipeline(transformer, vqvae, guidance_scale=GUIDANCE[kind], top_k=TOP_K[kind]).to(device)
