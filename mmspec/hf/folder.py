"""What transformers saves in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from mmspec.errors import ArgumentError

# Argument names of original LlamaGen files, whose converted form borrows a class name of transformers.
LLAMAGEN = ("block_size", "cls_token_num")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def architecture(folder: Path) -> str | None:
    """The class that `save_pretrained` noted in a folder; None where no model of transformers lies."""
    config = read_json(folder / "config.json")
    names = config.get("architectures")
    if not isinstance(names, list) or not names or any(key in config for key in LLAMAGEN):
        return None
    return str(names[0])


def read_processor(where: str | Path, name: str) -> Any:
    """The processor in a folder or under a Hub id, of the kind that a class takes.

    Raises:
        ArgumentError: When there is none.
    """
    kind = "AutoImageProcessor" if name == "ImageGPTForCausalImageModeling" else "AutoProcessor"
    try:
        return getattr(transformers, kind).from_pretrained(where)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ArgumentError(f"processor={str(where)!r} cannot be loaded: {type(error).__name__}: {reason}") from None
