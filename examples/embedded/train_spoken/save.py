"""Saves the modules of the voice, as `mmspec.audio.spoken.checkpoint` loads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from mmspec.files import replacing


class Configured(Protocol):
    """A module with the arguments that it was built with."""

    config: dict[str, Any]

    def state_dict(self) -> dict[str, torch.Tensor]: ...


def save_module(module: Configured, folder: Path) -> None:
    """Saves a module, with floats in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in module.state_dict().items()}
    with replacing(folder / "model.safetensors") as partial:
        save_file(state, partial)
    with replacing(folder / "config.json") as partial:
        partial.write_text(json.dumps(module.config, indent=1) + "\n", encoding="utf-8")
