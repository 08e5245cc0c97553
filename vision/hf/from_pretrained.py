"""Pipelines from folders of transformers models, and from loaded models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.errors import ArgumentError
from mmspec.hf.adapters import GENERATE_ADAPTERS
from mmspec.hf.folder import load_model, model_class, read_json, read_processor
from mmspec.hf.request import unwrap
from mmspec.vision.hf.decoders import keep_decoder_in_float32
from mmspec.vision.hf.pipeline import TransformersPipeline, input_device
from mmspec.vision.hf.vqgan import load_vqgan

# Classes of other libraries whose files a transformers class loads -> that class, and the layout of its images.
ALIASES = {"ChameleonXLLMXForConditionalGeneration": ("ChameleonForConditionalGeneration", "lumina")}
# The folders of GLM-Image's first stage in diffusers' pipeline.
STAGE, STAGE_PROCESSOR = "vision_language_encoder", "processor"
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
# Weights that encode images in Chameleon; models that only generate images are published without them.
UNUSED = "model.vqmodel."


def is_glm_pipeline(folder: Path) -> bool:
    """Whether a folder contains diffusers' pipeline of GLM-Image."""
    return read_json(folder / "model_index.json").get("_class_name") == "GlmImagePipeline"


def from_folder(
    folder: Path,
    processor: Any = None,
    tokenizer: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype | str = torch.float32,
) -> TransformersPipeline:
    """A pipeline from a folder with a transformers model and its processor; see `mmspec.load`.

    Args:
        folder: The folder, or one with diffusers' pipeline of GLM-Image.
        processor: A processor, or a folder or Hub id with one; None takes the one in the folder.
        tokenizer: The VQGAN's file, for Chameleon.
        config: `layout` ("anole" or "lumina"), for Chameleon.
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files; decoders are in float32.

    Raises:
        ArgumentError: If the class has no adapter, the processor is missing, or an option belongs to another class.
        ModelError: If the files cannot be loaded, or weights are missing.
    """
    processor_folder = folder
    if is_glm_pipeline(folder):
        folder, processor_folder = folder / STAGE, folder / STAGE_PROCESSOR
    found = model_class(folder)
    name, layout = ALIASES.get(found, (found, None))
    if name not in GENERATE_ADAPTERS:
        raise ArgumentError(
            f"model {str(folder)!r} is a {name}, for which mmspec has no adapter; "
            f"it has them for {', '.join(GENERATE_ADAPTERS)}; "
            "docs/adding-a-model.md explains how to add one"
        )
    model = load_model(folder, device, dtype, name, unused=(UNUSED,))
    keep_decoder_in_float32(model)
    if processor is None and any((processor_folder / file).exists() for file in PROCESSOR_FILES):
        processor = processor_folder
    if isinstance(processor, (str, Path)):
        processor = read_processor(processor, name)
    return from_model(model, processor, tokenizer, {"layout": layout, **(config or {})})


def from_model(
    model: Any,
    processor: Any = None,
    tokenizer: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
) -> TransformersPipeline:
    """A pipeline around a loaded model, which stays on its device; see `mmspec.load`.

    Args:
        model: The model.
        processor: Its processor.
        tokenizer: The VQGAN's file, for Chameleon.
        config: `layout` ("anole" or "lumina"), for Chameleon.

    Raises:
        ArgumentError: If the class has no adapter, the processor is missing, or an option belongs to another class.
        ModelError: If the VQGAN's file cannot be loaded, or the model has another number of codes.
    """
    options = dict(config or {})
    layout = options.pop("layout", None)
    if options:
        raise ArgumentError(f"config has {sorted(options)[0]!r}, which is not allowed; the only option is 'layout'")
    vqvae = None if tokenizer is None else load_vqgan(tokenizer).to(input_device(model))
    return TransformersPipeline(unwrap(model), processor, vqvae, layout=layout)
