"""The image adapter of each transformers class."""

from __future__ import annotations

from typing import Any

from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError
from mmspec.hf.adapters import adapted_class, adapter_of, is_plugin
from mmspec.vision.hf.image_adapter import Components, ImageAdapter

# By class name, as `mmspec.hf.adapters.GENERATE_ADAPTERS`.
IMAGE_ADAPTERS = {
    "JanusForConditionalGeneration": "mmspec.vision.hf.adapters.janus:JanusAdapter",
    "Emu3ForConditionalGeneration": "mmspec.vision.hf.adapters.emu3:Emu3Adapter",
    "ChameleonForConditionalGeneration": "mmspec.vision.hf.adapters.chameleon:chameleon_adapter",
    "GlmImageForConditionalGeneration": "mmspec.vision.hf.adapters.glm:GlmAdapter",
    "ImageGPTForCausalImageModeling": "mmspec.vision.hf.adapters.imagegpt:ImageGPTAdapter",
    "XOmniForCausalLM": "mmspec.vision.hf.adapters.xomni:XOmniAdapter",
    "LlamaForCausalLM": "mmspec.vision.hf.adapters.flat:FlatImageAdapter",
    "Qwen2ForCausalLM": "mmspec.vision.hf.adapters.flat:FlatImageAdapter",
    "Qwen3ForCausalLM": "mmspec.vision.hf.adapters.flat:FlatImageAdapter",
    "GemmaForCausalLM": "mmspec.vision.hf.adapters.flat:FlatImageAdapter",
}


def image_adapter_of(model: Any, components: Components) -> ImageAdapter:
    """The image adapter of a model's class, or of a class it derives from.

    For a class whose generate adapter is a plug-in's, it is what `image_adapter(model, components)` of that adapter
    returns, if there is such a function.

    Raises:
        ArgumentError: If the class has no image adapter, or a component is missing or not used by the class.
    """
    generate_adapter = adapter_of(model)
    if is_plugin(model):
        make = getattr(generate_adapter, "image_adapter", None)
    else:
        where = IMAGE_ADAPTERS.get(adapted_class(model) or "")
        make = None if where is None else resolve(where)
    if make is None:
        raise ArgumentError(
            f"{type(model).__name__} has an adapter for model.generate(custom_generate=mmspec.generate), but none for "
            "prompts and images; docs/adding-a-model.md explains how to add one"
        )
    adapter: ImageAdapter = make(model, components)
    return adapter
