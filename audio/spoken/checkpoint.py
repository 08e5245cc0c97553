"""Checkpoints of the voice: folders with `config.json` and `model.safetensors` in float16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors.torch import load_file, save_file

from mmspec.errors import ModelError
from mmspec.files import replacing


class Configured(Protocol):
    """A module with the arguments that it was built with."""

    config: dict[str, Any]

    def state_dict(self) -> dict[str, torch.Tensor]: ...
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> Any: ...


Module = TypeVar("Module", bound=torch.nn.Module)


def save_module(module: Configured, folder: Path) -> None:
    """Saves a module, with floats in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in module.state_dict().items()}
    with replacing(folder / "model.safetensors") as partial:
        save_file(state, partial)
    with replacing(folder / "config.json") as partial:
        partial.write_text(json.dumps(module.config, indent=1) + "\n", encoding="utf-8")


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
