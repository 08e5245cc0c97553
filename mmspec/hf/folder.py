"""Folders that `save_pretrained` of transformers wrote: models, their classes and their processors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.models.auto import modeling_auto

from mmspec.errors import ArgumentError, ModelError
from mmspec.hf.adapters import GENERATE_ADAPTERS
from mmspec.hub import current_access

# Classes that generate, by `model_type`.
GENERATIVE: tuple[Mapping[str, Any], ...] = (
    modeling_auto.MODEL_FOR_CAUSAL_IMAGE_MODELING_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
# Argument names of original LlamaGen files, whose converted form uses a class name of transformers.
LLAMAGEN = ("block_size", "cls_token_num")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def architecture(folder: Path) -> str | None:
    """The name of the class in a folder's config.json; None if the folder does not contain a transformers model.

    Early conversions, such as those of ImageGPT, name no class but only its `model_type`.
    """
    config = read_json(folder / "config.json")
    if any(key in config for key in LLAMAGEN):
        return None
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return str(names[0])
    return class_of_type(str(config.get("model_type")))


def class_of_type(model_type: str) -> str | None:
    """The class that transformers' auto classes take for a `model_type`, among those with an adapter; None without."""
    for mapping in GENERATIVE:
        name = mapping.get(model_type)
        if name in GENERATE_ADAPTERS:
            return str(name)
    return None


def read_processor(where: str | Path, name: str) -> Any:
    """The processor, or for ImageGPT the image processor, of a model class.

    Args:
        where: A folder or a Hub id.
        name: The model class.

    Raises:
        ArgumentError: If it cannot be loaded.
    """
    kind = "AutoImageProcessor" if name == "ImageGPTForCausalImageModeling" else "AutoProcessor"
    try:
        access = current_access()
        return getattr(transformers, kind).from_pretrained(where, cache_dir=access.cache_dir, token=access.token)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ArgumentError(f"processor={str(where)!r} cannot be loaded: {type(error).__name__}: {reason}") from None


def model_class(folder: Path) -> str:
    """The name of the class in a folder's config.json.

    Raises:
        ModelError: If the folder does not contain a transformers model.
    """
    name = architecture(folder)
    if name is None:
        raise ModelError(
            f"folder {str(folder)!r} does not contain a transformers model (a config.json that names its class)"
        )
    return name


def load_model(
    folder: Path, device: str, dtype: torch.dtype | str, name: str | None = None, unused: tuple[str, ...] = ()
) -> Any:
    """The transformers model in a folder, in evaluation mode.

    Args:
        folder: A folder written by `save_pretrained`.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files.
        name: The class to load; None takes the one that config.json names.
        unused: Prefixes of weights that are not needed and may be missing.

    Raises:
        ModelError: If there is no model, it cannot be loaded, or weights are missing: transformers initialises missing
            weights at random and reports them only in its log.
    """
    name = name or model_class(folder)
    try:
        model, report = getattr(transformers, name).from_pretrained(folder, dtype=dtype, output_loading_info=True)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"model {str(folder)!r} cannot be loaded: {type(error).__name__}: {reason}") from None
    if missing := sorted(key for key in report["missing_keys"] if not key.startswith(unused)):
        rest = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
        raise ModelError(f"model {str(folder)!r} is incomplete; missing: {', '.join(missing[:6])}{rest}")
    return model.to(device).eval()
