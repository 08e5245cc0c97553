"""Checkpoints of the voice: folders with `config.json` and `model.safetensors` in float16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file

from mmspec.errors import ModelError

Module = TypeVar("Module", bound=torch.nn.Module)


def load_module(module_class: type[Module], folder: Path) -> Module:
    """Loads a saved module in float32, for inference.

    Raises:
        ModelError: If the files are missing, or not those of `module_class`.
    """
    try:
        module = module_class(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        module.load_state_dict(
            {k: v.float() if v.is_floating_point() else v for k, v in load_file(folder / "model.safetensors").items()}
        )
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ModelError(
            f"'{folder}' does not hold a {module_class.__name__}: {' '.join(str(error).split())}"
        ) from error
    return module.eval().requires_grad_(False)
