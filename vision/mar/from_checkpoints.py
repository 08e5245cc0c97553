"""Pipelines from original MAR checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.media.listing import list_files
from mmspec.vision.llamagen.checkpoint import cast
from mmspec.vision.mar.checkpoint import load_mar
from mmspec.vision.mar.kl16 import load_kl16
from mmspec.vision.mar.pipeline import MARPipeline

_NAME = re.compile(r"mar[-_](base|large|huge|b|l|h)\.(safetensors|pth)|checkpoint-last\.pth")
# Width -> guidance scale of the published evaluation.
GUIDANCE = {768: 2.9, 1024: 3.0, 1280: 3.2}


def is_mar(path: Path) -> bool:
    """Whether `path` has the name of an original MAR file, or is a folder with one."""
    names = [file.name for file in list_files(path)] if path.is_dir() else [path.name]
    return any(_NAME.fullmatch(name) for name in names)


def from_checkpoints(
    path: str | Path,
    config: Mapping[str, Any] | None = None,
    vae: str | Path | None = None,
    draft: str | Path | None = None,
    device: str = "cpu",
    dtype: torch.dtype | str = torch.float32,
) -> MARPipeline:
    """A pipeline from original files.

    Args:
        path: `checkpoint-last.pth` of MAR-B, L or H, whose averaged weights are loaded, a flat `.safetensors`, or a
            folder with one of them.
        config: Original `MAR` argument names, for sizes that are not published; overrides the `config.json` in the
            folder.
        vae: `kl16.ckpt` or its safetensors mirror; without it a call returns latents only.
        draft: A smaller MAR of the same latents, for the recipe `draft`.
        device: Where to put the pipeline.
        dtype: The type of the transformers' weights, or "auto" for that of the file. The autoencoder stays in float32,
            as in the original; convert `pipe.vae` for another type.

    Raises:
        ModelError: If a file cannot be read, or does not fit its model.
        ArgumentError: If the number of attention heads is unknown, or the components do not fit each other.
    """
    transformer = cast(load_mar(path, config), dtype)
    return MARPipeline(
        transformer,
        None if vae is None else load_kl16(vae),
        None if draft is None else cast(load_mar(draft), dtype),
        guidance_scale=GUIDANCE.get(transformer.config.encoder_dim, 2.9),
    ).to(device)
