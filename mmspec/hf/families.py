"""Which adapter decodes which class of transformers: our own, and those of installed plug-ins."""

from __future__ import annotations

from typing import Any, Protocol

from mmspec.errors import ArgumentError, did_you_mean
from mmspec.hf.plan import Plan, Request
from mmspec.registry import Info, families, resolve

# By name, so that an adapter is imported only when a model of its class is there.
FAMILIES = {
    "JanusForConditionalGeneration": "mmspec.vision.hf.janus",
    "Emu3ForConditionalGeneration": "mmspec.vision.hf.emu3",
    "ChameleonForConditionalGeneration": "mmspec.vision.hf.chameleon",
    "GlmImageForConditionalGeneration": "mmspec.vision.hf.glm",
    "ImageGPTForCausalImageModeling": "mmspec.vision.hf.imagegpt",
    "BarkSemanticModel": "mmspec.audio.bark:SEMANTIC",
    "BarkCoarseModel": "mmspec.audio.bark:COARSE",
    "MusicgenForConditionalGeneration": "mmspec.audio.musicgen",
    "MusicgenMelodyForConditionalGeneration": "mmspec.audio.musicgen",
    "DiaForConditionalGeneration": "mmspec.audio.dia",
    "HiggsAudioV2ForConditionalGeneration": "mmspec.audio.higgs",
    "CsmForConditionalGeneration": "mmspec.audio.csm",
    "MoshiForConditionalGeneration": "mmspec.audio.moshi",
    "LlamaForCausalLM": "mmspec.audio.flat",
    "Qwen2ForCausalLM": "mmspec.audio.flat",
    "Qwen3ForCausalLM": "mmspec.audio.flat",
    "MistralForCausalLM": "mmspec.audio.flat",
}


class Family(Protocol):
    """The adapter of a model class: a module with two functions, or an object with two methods."""

    def ids_of_head(self, model: Any) -> int:
        """Size of the vocabulary that logits are over."""
        ...

    def plan(self, model: Any, request: Request) -> Plan:
        """How a request is decoded. **Raises:** `ArgumentError` for what the class cannot do."""
        ...


def family_of(model: Any) -> Family:
    """The adapter of a model's class, or of a class it derives from.

    **Raises:** `ArgumentError` for a class without one.
    """
    known = {name: Info(name, True, where) for name, where in FAMILIES.items()} | families()
    for kind in type(model).__mro__:
        if kind.__name__ in known:
            family: Family = resolve(known[kind.__name__])
            return family
    name = type(model).__name__
    raise ArgumentError(
        f"mmspec has no adapter for {name}{did_you_mean(name, known)}; it has them for {', '.join(known)}; "
        'for a class of yours, see "Adding a model" in the README (docs/adding-a-model.md)'
    )


def unwrap(model: Any) -> Any:
    """The model inside `torch.compile(model)`, which stands in for it under a class of its own."""
    return getattr(model, "_orig_mod", model)
