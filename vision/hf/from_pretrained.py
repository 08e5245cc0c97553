"""Pipelines from folders of transformers models, and from loaded models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmspec.arguments import shown
from mmspec.arguments.keywords import check_config
from mmspec.errors import ArgumentError
from mmspec.hf.adapters import adapters
from mmspec.hf.folder import load_model, model_class, read_json, read_processor, read_tokenizer
from mmspec.hf.request import unwrap
from mmspec.vision.hf.cosmos_decoder import is_cosmos, load_cosmos
from mmspec.vision.hf.decoders import keep_decoder_in_float32
from mmspec.vision.hf.emu3_decoder import is_emu3_decoder, load_emu3_decoder
from mmspec.vision.hf.emu3_tokenizer import RANKS as EMU3_RANKS
from mmspec.vision.hf.emu3_tokenizer import is_emu3_tokenizer, read_emu3_tokenizer
from mmspec.vision.hf.original_chameleon import is_original_chameleon, load_original_chameleon
from mmspec.vision.hf.original_janus import ORIGINAL as JANUS
from mmspec.vision.hf.original_janus import janus_generation_config, load_original_janus, read_janus_processor
from mmspec.vision.hf.original_xomni import XOMNI, load_xomni
from mmspec.vision.hf.pipeline import TransformersPipeline, input_device
from mmspec.vision.hf.vqgan import load_vqgan
from mmspec.vision.hf.xllmx import FIRST_IDS, LUMINA2, XLLMX, load_xllmx

# Classes of other libraries whose files a transformers class loads -> that class, and the layout of its images.
ALIASES = {
    XLLMX: ("ChameleonForConditionalGeneration", "lumina"),
    "SimpARForCausalLM": ("Qwen2ForCausalLM", "simplear"),
    "GemmaForCausalLM": ("GemmaForCausalLM", "liquid"),
    "Emu3ForCausalLM": ("LlamaForCausalLM", "emu3"),
    JANUS: ("JanusForConditionalGeneration", None),
}
# The vocabulary of Emu3; that of Emu3.5, whose files name the same class, is larger by 98,304 codes.
EMU3_IDS = 184622
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
        tokenizer: The file of the codes' decoder, for models without one.
        config: `layout`, for Chameleon ("anole" or "lumina") and flat models (see `mmspec.vision.hf.flat_formats`).
        device: Where to put the model.
        dtype: The type of its weights, or "auto" for that of the files; decoders are in float32.

    Raises:
        ArgumentError: If the class has no adapter, the processor is missing, or an option belongs to another class.
        ModelError: If the files cannot be loaded, or weights are missing.
    """
    if is_original_chameleon(folder):
        model, own, vqgan = load_original_chameleon(folder, device, dtype)
        processor = own if processor is None else loaded_processor(processor, type(model).__name__)
        return from_model(model, processor, tokenizer or vqgan, config)
    processor_folder = folder
    if is_glm_pipeline(folder):
        folder, processor_folder = folder / STAGE, folder / STAGE_PROCESSOR
    name, layout = alias_of(folder)
    if name not in adapters():
        raise ArgumentError(
            f"model {str(folder)!r} is a {name}, for which mmspec has no adapter; "
            f"it has them for {', '.join(adapters())}; "
            "docs/adding-a-model.md explains how to add one"
        )
    if model_class(folder) == JANUS:
        model = load_original_janus(folder, device, dtype)
        processor = read_janus_processor(folder) if processor is None else loaded_processor(processor, name)
        model.generation_config = janus_generation_config(processor)
    elif model_class(folder) == XLLMX:
        model = load_xllmx(folder, device, dtype)
    elif model_class(folder) == XOMNI:
        model = load_xomni(folder, device, dtype)
    else:
        model = load_model(folder, device, dtype, name, unused=(UNUSED,))
    keep_decoder_in_float32(model)
    if processor is None and any((processor_folder / file).exists() for file in (*PROCESSOR_FILES, EMU3_RANKS)):
        processor = processor_folder
    processor = processor_of_model(processor, name, {"layout": layout})
    return from_model(model, processor, tokenizer, {"layout": layout, **(config or {})})


def loaded_processor(processor: Any, name: str) -> Any:
    """A processor, read if it is a folder or Hub id; others are returned as they are.

    Args:
        processor: The processor, its folder or Hub id, or None.
        name: The model class.

    Raises:
        ArgumentError: If it cannot be loaded.
        ModelError: If it is a tokenizer of Emu3 that is damaged.
    """
    if not isinstance(processor, (str, Path)):
        return processor
    local = Path(processor)
    return read_emu3_tokenizer(local) if is_emu3_tokenizer(local) else read_processor(processor, name)


def processor_of_model(processor: Any, name: str, config: Mapping[str, Any] | None) -> Any:
    """The processor of a loaded model, read if it is a folder or Hub id.

    Args:
        processor: The processor, its folder or Hub id, or None.
        name: The model class.
        config: The options of `mmspec.load`: models with a `layout` of their own read texts with a tokenizer.

    Raises:
        ArgumentError: If it cannot be loaded.
        ModelError: If it is a tokenizer of Emu3 that is damaged.
    """
    if isinstance(processor, (str, Path)) and ((config or {}).get("layout") == LUMINA2 or name == XOMNI):
        return read_tokenizer(processor)
    return loaded_processor(processor, name)


def alias_of(folder: Path) -> tuple[str, str | None]:
    """The class of transformers that loads a folder, and the layout of its images; None if the class implies it.

    Raises:
        ModelError: If the folder does not contain a transformers model.
    """
    found = model_class(folder)
    ids = read_json(folder / "config.json").get("vocab_size")
    if found == "Emu3ForCausalLM" and isinstance(ids, int) and ids > EMU3_IDS:
        # Its attention has norms of queries and keys: that of Qwen3.
        return "Qwen3ForCausalLM", "emu3.5"
    if found == XLLMX and isinstance(ids, int) and ids > FIRST_IDS:
        return "ChameleonForConditionalGeneration", LUMINA2
    return ALIASES.get(found, (found, None))


def from_model(
    model: Any,
    processor: Any = None,
    tokenizer: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
) -> TransformersPipeline:
    """A pipeline around a loaded model, which stays on its device; see `mmspec.load`.

    Args:
        tokenizer: The file of the codes' decoder, for models without one.
        config: `layout`, for Chameleon ("anole" or "lumina") and flat models (see `mmspec.vision.hf.flat_formats`).

    Raises:
        ArgumentError: If the class has no adapter, the processor is missing, or an option belongs to another class.
        ModelError: If the VQGAN's file cannot be loaded, or the model has another number of codes.
    """
    options = dict(config or {})
    layout = options.pop("layout", None)
    check_config(options, type(model).__name__, ["layout"])
    if not isinstance(layout, (str, type(None))):
        raise ArgumentError(f"layout={shown(layout)} is not allowed; it is a name")
    vqvae = None if tokenizer is None else load_decoder(Path(tokenizer)).to(input_device(model))
    return TransformersPipeline(unwrap(model), processor, vqvae, layout=layout)


def load_decoder(path: Path) -> Any:
    """The decoder of a model's codes: a VQGAN, or that of Cosmos or Emu3.

    Raises:
        ModelError: If the file cannot be read, or is none of them.
    """
    if is_cosmos(path):
        return load_cosmos(path)
    return load_emu3_decoder(path) if is_emu3_decoder(path) else load_vqgan(path)
