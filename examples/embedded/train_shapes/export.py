"""Atomic export of weights."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

from diffusers.models.modeling_utils import ModelMixin


def export(model: ModelMixin, folder: Path) -> None:
    """Saves `model` as fp16 safetensors in `folder`, which it replaces; readers never find a partial model."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.new")
    stale = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(stale, ignore_errors=True)
    half = copy.deepcopy(model).half()
    half.save_pretrained(fresh, safe_serialization=True)
    if folder.exists():
        folder.rename(stale)
    fresh.rename(folder)
    shutil.rmtree(stale, ignore_errors=True)
