"""Weights on disk: a folder with config.json and model.safetensors in half precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors.torch import load_file, save_file

from mmspec.errors import ModelError
from mmspec.files import replacing


class Configured(Protocol):
    """A module that says what it was made with."""

    config: dict[str, Any]

    def state_dict(self) -> dict[str, torch.Tensor]: ...
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> Any: ...


Net = TypeVar("Net", bound=torch.nn.Module)


def export(net: Configured, folder: Path) -> None:
    """Writes a module, floats as fp16."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in net.state_dict().items()}
    with replacing(folder / "model.safetensors") as partial:
        save_file(state, partial)
    with replacing(folder / "config.json") as partial:
        partial.write_text(json.dumps(net.config, indent=1) + "\n", encoding="utf-8")


def load(kind: type[Net], folder: Path) -> Net:
    """Reads such a module in float32, for inference.

    Raises:
        ModelError: When the files are not of that kind.
    """
    try:
        net = kind(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        net.load_state_dict(
            {k: v.float() if v.is_floating_point() else v for k, v in load_file(folder / "model.safetensors").items()}
        )
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"'{folder}' does not hold a {kind.__name__}: {' '.join(str(error).split())}") from error
    return net.eval().requires_grad_(False)
