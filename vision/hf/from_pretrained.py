"""Pipelines from what transformers saves, and from models that are loaded already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.errors import ArgumentError
from mmspec.hf.adapters import GENERATE_ADAPTERS
from mmspec.hf.folder import load_model, model_class, read_json, read_processor
from mmspec.hf.request import unwrap
from mmspec.vision.hf.pipeline import TransformersPipeline, home
from mmspec.vision.hf.vqgan import load_vqgan

# Classes of other libraries that save what one of transformers loads -> that class, and the layout of its images.
ALIASES = {"ChameleonXLLMXForConditionalGeneration": ("ChameleonForConditionalGeneration", "lumina")}
# Where diffusers' pipeline keeps GLM-Image's first stage.
STAGE, STAGE_PROCESSOR = "vision_language_encoder", "processor"
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
# What reads images in Chameleon; models that only draw are published without it.
UNUSED = "model.vqmodel."


def is_stage(folder: Path) -> bool:
    """Whether a folder holds diffusers' pipeline of GLM-Image."""
    return read_json(folder / "model_index.json").get("_class_name") == "GlmImagePipeline"


def from_folder(
    folder: Path,
    processor: Any = None,
    tokenizer: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> TransformersPipeline:
    """A pipeline from a folder with a model of transformers, its processor beside it; see `mmspec.load`.

    Raises:
        ArgumentError: For a class without an adapter, a processor that is not there and options of another class.
        ModelError: For files that are not what they claim to be.
    """
    beside = folder
    if is_stage(folder):
        folder, beside = folder / STAGE, folder / STAGE_PROCESSOR
    found = model_class(folder)
    name, layout = ALIASES.get(found, (found, None))
    if name not in GENERATE_ADAPTERS:
        raise ArgumentError(
            f"model {str(folder)!r} is a {name}, for which mmspec has no adapter; "
            f"it has them for {', '.join(GENERATE_ADAPTERS)}; "
            'for a class of yours, see "Adding a model" in the README (docs/adding-a-model.md)'
        )
    model = load_model(folder, device, dtype, name, unused=(UNUSED,))
    if processor is None and any((beside / file).exists() for file in PROCESSOR_FILES):
        processor = beside
    if isinstance(processor, (str, Path)):
        processor = read_processor(processor, name)
    return from_model(model, processor, tokenizer, {"layout": layout, **(config or {})})


def from_model(
    model: Any,
    processor: Any = None,
    tokenizer: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
) -> TransformersPipeline:
    """A pipeline around a model where it is; see `mmspec.load`.

    Args:
        tokenizer: The VQGAN's file, for Chameleon.
        config: `layout` ("anole" or "lumina"), for Chameleon.

    Raises:
        ArgumentError: As `TransformersPipeline`.
        ModelError: As `TransformersPipeline` and `load_vqgan`.
    """
    options = dict(config or {})
    layout = options.pop("layout", None)
    if options:
        raise ArgumentError(f"config has {sorted(options)[0]!r}, which is not allowed here; it may have 'layout'")
    vqvae = None if tokenizer is None else load_vqgan(tokenizer).to(home(model), model.dtype)
    return TransformersPipeline(unwrap(model), processor, vqvae, layout=layout)
