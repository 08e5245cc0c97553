"""The dtypes of the components of a saved pipeline: decoders are in float32, because rounding is visible in images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from mmspec.errors import ArgumentError
from mmspec.media.listing import list_files


def component_dtypes(folder: Path, dtype: Any, model: str, decoder: str) -> Any:
    """The argument `dtype` of `DiffusionPipeline.from_pretrained`.

    Args:
        folder: The saved pipeline.
        dtype: A `torch.dtype` for the model; "auto" for that of its file; None, or a dict of dtypes by component, is
            returned as it is.
        model: The name of the component that generates.
        decoder: The name of the component that decodes.

    Raises:
        ArgumentError: If `dtype` is something else.
    """
    if dtype is None or isinstance(dtype, dict):
        return dtype
    if dtype == "auto":
        dtype = stored_dtype(folder / model)
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"dtype={dtype!r} is not allowed; use a torch.dtype, or 'auto' for that of the files")
    return {"default": dtype, decoder: torch.float32}


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype of the first tensor of numbers in a component's files; float32 if there are no safetensors."""
    for file in list_files(folder, (".safetensors",)):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                if (found := tensors.get_slice(name)[:0].dtype).is_floating_point:
                    return found
    return torch.float32
