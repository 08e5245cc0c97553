"""Pipelines from original VAR checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.media.listing import list_files
from mmspec.vision.llamagen.checkpoint import cast
from mmspec.vision.var.checkpoint import load_tokenizer, load_var
from mmspec.vision.var.pipeline import VARPipeline

_NAME = re.compile(r"var_d\d+\.(pth|safetensors)")


def is_var(path: Path) -> bool:
    """Whether `path` has the name of an original VAR file, or is a folder with one."""
    names = [file.name for file in list_files(path)] if path.is_dir() else [path.name]
    return any(_NAME.fullmatch(name) for name in names)


def from_checkpoints(
    path: str | Path,
    config: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    draft: str | Path | None = None,
    device: str = "cpu",
    dtype: torch.dtype | str = torch.float32,
) -> VARPipeline:
    """A pipeline from original files.

    Args:
        path: Such as `var_d30.pth`, or a folder with one such file.
        config: Original argument names, for sizes that are not published.
        tokenizer: `vae_ch160v4096z32.pth`; without it a call needs it.
        draft: A smaller VAR of the same tokenizer, such as `var_d16.pth`, for `large_scales`.
        device: Where to put the pipeline.
        dtype: The type of the transformers' weights, or "auto" for that of the file. The tokenizer stays in float32.

    Raises:
        ModelError: If a file cannot be read, or does not fit its model.
        ArgumentError: If the sides of the maps are unknown, or there is no tokenizer.
    """
    transformer = cast(load_var(path, config), dtype)
    vae = None if tokenizer is None else load_tokenizer(tokenizer, transformer.sides)
    small = None if draft is None else cast(load_var(draft, config), dtype)
    return VARPipeline(transformer, vae, small).to(device)
