"""Which adapter decodes which class of transformers: our own, and those of installed plug-ins."""

from __future__ import annotations

from typing import Any, Protocol

from mmspec.errors import ArgumentError, did_you_mean
from mmspec.hf.plan import Plan, PlanRequest
from mmspec.registry import plugins, resolve

# By name, so that an adapter is imported only when a model of its class is there.
GENERATE_ADAPTERS = {
    "JanusForConditionalGeneration": "mmspec.vision.hf.decoding.janus",
    "Emu3ForConditionalGeneration": "mmspec.vision.hf.decoding.emu3",
    "ChameleonForConditionalGeneration": "mmspec.vision.hf.decoding.chameleon",
    "GlmImageForConditionalGeneration": "mmspec.vision.hf.decoding.glm",
    "ImageGPTForCausalImageModeling": "mmspec.vision.hf.decoding.imagegpt",
    "BarkSemanticModel": "mmspec.audio.models.bark.decoding:SEMANTIC",
    "BarkCoarseModel": "mmspec.audio.models.bark.decoding:COARSE",
    "MusicgenForConditionalGeneration": "mmspec.audio.models.musicgen.decoding",
    "MusicgenMelodyForConditionalGeneration": "mmspec.audio.models.musicgen.decoding",
    "DiaForConditionalGeneration": "mmspec.audio.models.dia.decoding",
    "HiggsAudioV2ForConditionalGeneration": "mmspec.audio.models.higgs.decoding",
    "CsmForConditionalGeneration": "mmspec.audio.models.csm.decoding",
    "MoshiForConditionalGeneration": "mmspec.audio.models.moshi.decoding",
    "LlamaForCausalLM": "mmspec.audio.models.flat.decoding",
    "Qwen2ForCausalLM": "mmspec.audio.models.flat.decoding",
    "Qwen3ForCausalLM": "mmspec.audio.models.flat.decoding",
    "MistralForCausalLM": "mmspec.audio.models.flat.decoding",
}


class GenerateAdapter(Protocol):
    """The adapter of a model class: a module with two functions, or an object with two methods."""

    def vocab_size(self, model: Any) -> int:
        """Size of the vocabulary that logits are over."""
        ...

    def plan(self, model: Any, request: PlanRequest) -> Plan:
        """How a request is decoded.

        Raises:
            ArgumentError: For what the class cannot do.
        """
        ...


def adapter_of(model: Any) -> GenerateAdapter:
    """The adapter of a model's class, or of a class it derives from.

    Raises:
        ArgumentError: For a class without one.
    """
    known = {**GENERATE_ADAPTERS, **{name: info.where for name, info in plugins("mmspec.adapters").items()}}
    for kind in type(model).__mro__:
        if kind.__name__ in known:
            family: GenerateAdapter = resolve(known[kind.__name__])
            return family
    name = type(model).__name__
    raise ArgumentError(
        f"mmspec has no adapter for {name}{did_you_mean(name, known)}; it has them for {', '.join(known)}; "
        'for a class of yours, see "Adding a model" in the README (docs/adding-a-model.md)'
    )
