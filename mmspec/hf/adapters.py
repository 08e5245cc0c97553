"""The adapter of each transformers class: those of mmspec, and those of installed plug-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mmspec.errors import ArgumentError
from mmspec.registry import Info, by_name, component

if TYPE_CHECKING:
    from mmspec.hf.plan import Plan, PlanRequest

# By name, so that an adapter is imported only for a model of its class.
GENERATE_ADAPTERS = {
    "JanusForConditionalGeneration": "mmspec.vision.hf.decoding.janus",
    "Emu3ForConditionalGeneration": "mmspec.vision.hf.decoding.emu3",
    "ChameleonForConditionalGeneration": "mmspec.vision.hf.decoding.chameleon",
    "GlmImageForConditionalGeneration": "mmspec.vision.hf.decoding.glm",
    "ImageGPTForCausalImageModeling": "mmspec.vision.hf.decoding.imagegpt",
    "XOmniForCausalLM": "mmspec.vision.hf.decoding.xomni",
    "BarkSemanticModel": "mmspec.audio.models.bark.decoding:SEMANTIC",
    "BarkCoarseModel": "mmspec.audio.models.bark.decoding:COARSE",
    "MusicgenForConditionalGeneration": "mmspec.audio.models.musicgen.decoding",
    "MusicgenMelodyForConditionalGeneration": "mmspec.audio.models.musicgen.decoding",
    "DiaForConditionalGeneration": "mmspec.audio.models.dia.decoding",
    "HiggsAudioV2ForConditionalGeneration": "mmspec.audio.models.higgs.decoding",
    "CsmForConditionalGeneration": "mmspec.audio.models.csm.decoding",
    "MoshiForConditionalGeneration": "mmspec.audio.models.moshi.decoding",
    "Qwen2_5OmniTalkerForConditionalGeneration": "mmspec.audio.models.qwen2_5_omni.decoding",
    "Qwen3OmniMoeTalkerForConditionalGeneration": "mmspec.audio.models.qwen3_omni.decoding",
    "GPT2InferenceModel": "mmspec.audio.models.xtts.decoding",
    "LlamaForCausalLM": "mmspec.audio.models.flat.decoding",
    "Qwen2ForCausalLM": "mmspec.audio.models.flat.decoding",
    "Qwen3ForCausalLM": "mmspec.audio.models.flat.decoding",
    "MistralForCausalLM": "mmspec.audio.models.flat.decoding",
    "GemmaForCausalLM": "mmspec.audio.models.flat.decoding",
    "Gemma3ForCausalLM": "mmspec.audio.models.flat.decoding",
    "GPT2LMHeadModel": "mmspec.audio.models.flat.decoding",
    "PhiForCausalLM": "mmspec.audio.models.flat.decoding",
    "Phi3ForCausalLM": "mmspec.audio.models.flat.decoding",
    "Lfm2ForCausalLM": "mmspec.audio.models.flat.decoding",
}


class GenerateAdapter(Protocol):
    """Defines how `mmspec.generate` decodes a model class: a module with two functions, or an object with two methods.

    Three more attributes are optional: `generate(request: GenerateRequest)` takes over the whole call, for models whose
    tokens are not single ids; `READS_EMBEDS = True` accepts a prompt in `inputs_embeds`; `image_adapter(model,
    components)` returns the `mmspec.vision.hf.image_adapter.ImageAdapter` of a plug-in's class.
    """

    def vocab_size(self, model: Any) -> int:
        """The number of ids that the model's logits cover."""
        ...

    def plan(self, model: Any, request: PlanRequest) -> Plan:
        """How a request is decoded.

        Raises:
            ArgumentError: If the class does not support an argument of the request.
        """
        ...


def adapters() -> dict[str, str | Info]:
    """The adapters of mmspec, of plug-ins and those registered, by class name."""
    return by_name(GENERATE_ADAPTERS, "mmspec.adapters")


def adapted_class(model: Any) -> str | None:
    """The name of the model's class, or of the first class it derives from, that has an adapter; None without."""
    known = adapters()
    return next((kind.__name__ for kind in type(model).__mro__ if kind.__name__ in known), None)


def is_plugin(model: Any) -> bool:
    """Whether the adapter of a model is not one of mmspec."""
    return isinstance(adapters().get(adapted_class(model) or ""), Info)


def adapter_of(model: Any) -> GenerateAdapter:
    """The adapter of a model's class, or of the first class it derives from that has one.

    Raises:
        ArgumentError: If the class has no adapter.
        PluginError: If that of another package cannot be loaded, or is none.
    """
    known = adapters()
    name = adapted_class(model)
    if name is not None:
        adapter: GenerateAdapter = component(known[name], "mmspec.adapters")
        return adapter
    name = type(model).__name__
    if hasattr(model, "get_base_model"):
        raise ArgumentError(
            f"model is a {name}; pass model.get_base_model(), in which the adapters of PEFT are active (and merge them "
            "with merge_and_unload() before saving)"
        )
    raise ArgumentError(
        f"mmspec has no adapter for {name}; it has them for {', '.join(known)}; "
        "docs/adding-a-model.md explains how to add one"
    )
