"""Weights under the names of original code, read as those of a transformers model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_tensors, describe, read_tensors
from mmspec.files.code_settings import refuse_quantized
from mmspec.hf.folder import LOAD_ERRORS

Renaming = Sequence[tuple[str, str]]


def rename(key: str, renaming: Renaming) -> str:
    """A name after all replacements, in order: pairs of a pattern and what replaces it."""
    for pattern, new in renaming:
        key = re.sub(pattern, new, key)
    return key


def read_folder(folder: Path, renaming: Renaming) -> dict[str, Tensor]:
    """The tensors of all files of weights in a folder, of one format; those whose name becomes empty are left out.

    Tensors that share their memory in a file get a memory each: a model that is saved with shared ones lacks a tensor.

    Raises:
        ModelError: If there are none, or a file cannot be read.
    """
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise ModelError(f"model {str(folder)!r} has no weights; there must be a .safetensors or .bin file")
    tensors, starts = {}, set[int]()
    for file in files:
        for key, value in read_tensors(file, "model").items():
            if name := rename(key, renaming):
                tensors[name] = value.clone() if value.data_ptr() in starts else value
                starts.add(value.data_ptr())
    return tensors


def load_renamed(
    kind: Any, config: Any, tensors: dict[str, Tensor], what: str, device: str, dtype: torch.dtype | str
) -> Any:
    """A transformers model with tensors under its names, in evaluation mode.

    Args:
        kind: The class of the model.
        tensors: Under the names of the model.
        what: The model, for the error.
        device: Where to put it.
        dtype: The type of floating-point weights, or "auto" for that of the tensors.

    Raises:
        ModelError: If the model cannot be built with these sizes, or names or shapes do not fit.
    """
    refuse_quantized(config.to_dict(), what)
    with building(what, f"a {kind.__name__}"):
        check_tensors(what, tensors, kind(config))
    if not isinstance(dtype, torch.dtype):
        dtype = next(value.dtype for value in tensors.values() if value.is_floating_point())
    try:
        model = kind.from_pretrained(None, config=config, state_dict=tensors, dtype=dtype)
    except LOAD_ERRORS as error:
        raise ModelError(f"{what} cannot be loaded: {describe(error)}") from None
    return model.to(device).eval()
