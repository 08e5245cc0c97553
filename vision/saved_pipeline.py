"""Folders that `save_pretrained` of a pipeline wrote.

`model_index.json` names the classes of the components. Only the classes that the pipelines are made of are loaded, so
that a folder cannot choose what is imported, and each component has exactly the tensors that its config describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from diffusers import AmusedScheduler, AutoencoderKL, UVit2DModel, VQModel

from mmspec.errors import ArgumentError, MMSpecError, ModelError, did_you_mean
from mmspec.files.checkpoint import building, describe
from mmspec.files.documents import read_object
from mmspec.hf.adapters import GENERATE_ADAPTERS
from mmspec.hf.folder import LOAD_ERRORS, check_processor, load_model
from mmspec.vision.amused.pipeline import AmusedPipeline
from mmspec.vision.cosmos_ar.pipeline import CosmosPipeline, check_tokenizer
from mmspec.vision.cosmos_ar.tokenizer import load_video_tokenizer
from mmspec.vision.cosmos_ar.transformer import CosmosTransformer
from mmspec.vision.hf.original_xomni import XOMNI, load_xomni
from mmspec.vision.hf.pipeline import TransformersPipeline
from mmspec.vision.llamagen.gpt import LlamaGenBlockGPT, LlamaGenGPT
from mmspec.vision.llamagen.ngram import NGramTokenTable
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.mar.pipeline import MARPipeline
from mmspec.vision.mar.transformer import MARTransformer
from mmspec.vision.saved_component import load_component
from mmspec.vision.scenes.text import ScenesTextEncoder
from mmspec.vision.shapes.text import ShapesTextEncoder
from mmspec.vision.shapes.tokenizer import ShapesTokenizer
from mmspec.vision.var.pipeline import VARPipeline
from mmspec.vision.var.tokenizer import VARTokenizer
from mmspec.vision.var.transformer import VARTransformer

PIPELINES = {
    kind.__name__: kind
    for kind in (
        AmusedPipeline, CosmosPipeline, LlamaGenPipeline, MARPipeline, TransformersPipeline, VARPipeline,
    )
}  # fmt: skip
# The classes of components: modules of diffusers and mmspec, models of transformers, and what reads texts.
MODULES = {
    kind.__name__: kind
    for kind in (
        AutoencoderKL, CosmosTransformer, LlamaGenBlockGPT, LlamaGenGPT, MARTransformer, NGramTokenTable,
        ScenesTextEncoder, ShapesTextEncoder, ShapesTokenizer, UVit2DModel, VARTokenizer, VARTransformer, VQModel,
    )
}  # fmt: skip
DECODERS = ("vae", "vqvae")  # in float32, because rounding is visible in images
MODELS = ("CLIPTextModelWithProjection", "T5EncoderModel", *GENERATE_ADAPTERS)
SCHEDULERS = {"AmusedScheduler": AmusedScheduler}
PROCESSORS = (
    "CLIPTokenizer", "CLIPTokenizerFast",
    "ChameleonProcessor", "Emu3Processor", "GlmImageProcessor", "ImageGPTImageProcessor", "ImageGPTImageProcessorFast",
    "ImageGPTImageProcessorPil", "JanusProcessor",
    "GemmaTokenizer", "GemmaTokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast", "T5Tokenizer", "T5TokenizerFast",
    "TokenizersBackend",
)  # fmt: skip


def load_pipeline(folder: Path, device: str, dtype: torch.dtype | str, tokenizer: Path | None = None) -> Any:
    """The pipeline in a folder.

    Args:
        device: The device to load to.
        dtype: The type of the weights, or "auto" for that of each file; decoders are in float32.
        tokenizer: The folder of the video tokenizer of a `CosmosPipeline`, whose programs run only if it is named.

    Raises:
        ArgumentError: If `tokenizer` is given with another pipeline.
        ModelError: If the folder has no pipeline of mmspec, a component is of another class than the pipelines have,
            files are missing or damaged, or tensors are missing, unknown or misshapen.
    """
    index = read_object(folder / "model_index.json")
    name = index.get("_class_name")
    if not isinstance(name, str) or name not in PIPELINES:
        near = did_you_mean(str(name), PIPELINES)
        raise ModelError(
            f"model {str(folder)!r} is a {name!r}, not a pipeline that mmspec can load{near}; it loads "
            f"{', '.join(PIPELINES)}"
        )
    kind = PIPELINES[name]
    if tokenizer is not None and kind is not CosmosPipeline:
        raise ArgumentError(f"tokenizer was given, but a saved {name} comes with its own; leave it out")
    components = {
        part: component(folder, part, entry, dtype) for part, entry in named_components(folder, index, kind).items()
    }
    try:
        # Only what is no component remains to be read. Without `low_cpu_mem_usage` diffusers warns without accelerate.
        pipe = kind.from_pretrained(folder, low_cpu_mem_usage=False, **components)
    except MMSpecError as error:
        raise ModelError(f"model {str(folder)!r} cannot be loaded: {error}") from None
    except LOAD_ERRORS as error:
        raise ModelError(f"model {str(folder)!r} cannot be loaded: {describe(error)}") from None
    if tokenizer is not None:
        tokens = load_video_tokenizer(tokenizer)
        check_tokenizer(pipe.transformer, tokens)
        pipe.register_modules(video_tokenizer=tokens)
    return pipe.to(device)


def named_components(folder: Path, index: Mapping[str, Any], kind: Any) -> dict[str, tuple[str, str]]:
    """Library and class of each component that a folder has.

    Raises:
        ModelError: If the pipeline has no component of a name, or lacks one that it needs.
    """
    required, optional = kind._get_signature_keys(kind)
    found = {}
    for part, entry in index.items():
        if part.startswith("_") or part in optional and part not in kind._optional_components:
            continue
        if part not in required and part not in kind._optional_components:
            raise ModelError(f"model {str(folder)!r}: model_index.json has {part!r}, which a {kind.__name__} has not")
        match entry:
            case [None, None]:
                continue
            case [str(library), str(class_name)]:
                found[part] = library, class_name
            case _:
                raise ModelError(
                    f"model {str(folder)!r}: model_index.json has {part}={entry!r}; it must be [library, class]"
                )
    if missing := [part for part in required if part not in found and part not in kind._optional_components]:
        raise ModelError(f"model {str(folder)!r} is incomplete; model_index.json names no {missing[0]}")
    return found


def component(folder: Path, part: str, entry: tuple[str, str], dtype: torch.dtype | str) -> Any:
    """One component of the pipeline in a folder.

    Args:
        folder: The folder of the pipeline.
        part: The component's name, and that of its folder.
        entry: Library and class of the component.
        dtype: The type of its weights.

    Raises:
        ModelError: If its class is not one that pipelines are made of, or it cannot be loaded.
    """
    library, name = entry
    if part in DECODERS:
        dtype = torch.float32
    where, home = folder / part, library.partition(".")[0]
    if home in ("diffusers", "mmspec") and name in MODULES:
        return load_component(MODULES[name], where, dtype)
    if home == "diffusers" and name in SCHEDULERS:
        config = read_object(where / "scheduler_config.json")
        with building(f"{part} {str(where)!r}", f"a {name}"):
            return SCHEDULERS[name].from_config(config)
    if home == "mmspec" and name == XOMNI:
        return load_xomni(where, "cpu", dtype)
    if home == "transformers" and name in MODELS and name != XOMNI:
        return load_model(where, "cpu", dtype, name)
    if home == "transformers" and name in PROCESSORS and hasattr(transformers, name):
        check_processor(where)
        try:
            return getattr(transformers, name).from_pretrained(where, trust_remote_code=False)
        except LOAD_ERRORS as error:
            raise ModelError(f"{part} {str(where)!r} cannot be loaded: {describe(error)}") from None
    raise ModelError(
        f"model {str(folder)!r}: model_index.json names {library}.{name} as its {part}, which mmspec does not load; "
        f"it loads {', '.join((*MODULES, *MODELS, *PROCESSORS))}. For a class of your own call from_pretrained of the "
        "pipeline's class"
    )
