"""Folders that `save_pretrained` of diffusers wrote for one module: checked before anything is allocated."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.errors import ModelError
from mmspec.files.checkpoint import building, check_depths, check_tensors, read_header, sizes_of
from mmspec.files.documents import read_object

NAME = "diffusion_pytorch_model"
WEIGHT_FILES = (f"{NAME}.safetensors", f"{NAME}.bin")
INDEX_FILES = tuple(f"{file}.index.json" for file in WEIGHT_FILES)


def load_component(kind: Any, folder: Path, dtype: torch.dtype | str) -> Any:
    """The module in a folder, in evaluation mode.

    Args:
        kind: Its class, a `diffusers.ModelMixin`.
        dtype: The type of its weights, or "auto" for that of the file.

    Raises:
        ModelError: If files are missing or damaged, the config is one of another class, or the tensors are not exactly
            those that the config describes.
    """
    tensors = check_component(kind, folder)
    if dtype == "auto":
        dtype = next((t.dtype for t in tensors.values() if t.is_floating_point()), torch.float32)
    with sizes_of(f"component {str(folder)!r}", f"a {kind.__name__}"):
        # Without this argument diffusers warns on stderr if accelerate is not installed.
        return kind.from_pretrained(folder, dtype=dtype, low_cpu_mem_usage=False).eval()


def check_component(kind: Any, folder: Path, saved_as: str | None = None) -> dict[str, Tensor]:
    """Checks that a folder has the config of a class, and exactly the tensors that this config describes.

    Args:
        kind: The class.
        saved_as: The name of the class in the config; None is that of `kind`.

    Returns:
        The tensors; see `mmspec.files.checkpoint.read_header`.

    Raises:
        ModelError: If it has not.
    """
    what = f"component {str(folder)!r}"
    config, tensors = read_object(folder / "config.json"), read_headers(folder)
    if config.get("_class_name") != (saved_as or kind.__name__):
        raise ModelError(f"{what} is a {config.get('_class_name')!r} by its config.json, not a {kind.__name__}")
    check_depths(what, config, len(tensors))
    known = inspect.signature(kind.__init__).parameters
    if unknown := [name for name in config if not name.startswith("_") and name not in known]:
        raise ModelError(f"{what}: config.json has {unknown[0]!r}, which a {kind.__name__} does not have")
    arguments = {name: value for name, value in config.items() if name in known}
    with building(what, f"a {kind.__name__}"):
        module = kind(**arguments)
    check_tensors(what, tensors, module)
    return tensors


def read_headers(folder: Path) -> dict[str, Tensor]:
    """The tensors in the file of weights, or files, of a folder; see `mmspec.files.checkpoint.read_header`.

    Raises:
        ModelError: If there are none, or they cannot be read.
    """
    found: dict[str, Tensor] = {}
    for file in weight_files(folder):
        found |= read_header(file, "component")
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files of weights that diffusers reads from a folder.

    Raises:
        ModelError: If there are none, or an index names a file outside of the folder.
    """
    for index in INDEX_FILES:
        if not (folder / index).is_file():
            continue
        parts = read_object(folder / index).get("weight_map")
        names = sorted({str(name) for name in parts.values()}) if isinstance(parts, dict) else []
        if wrong := [name for name in names if Path(name).name != name or not (folder / name).is_file()]:
            raise ModelError(f"component {str(folder)!r}: {index} names {wrong[0]!r}, which is no file in the folder")
        return [folder / name for name in names]
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return [folder / name]
    raise ModelError(f"component {str(folder)!r} has no weights; there must be {' or '.join(WEIGHT_FILES)}")
