"""Modes and settings of transformers' `generate` that have no meaning with drafts, and are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers.distributed.fsdp import is_fsdp_managed_module
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from mmspec.errors import ArgumentError

# The settings of a `GenerationConfig` that are refused, each with what to do instead. Values that mean "off" are let
# through; see `OFF`.
REFUSED = {
    "output_scores": "it would include rejected drafts",
    "output_logits": "it would include rejected drafts",
    "output_attentions": "it would include rejected drafts",
    "output_hidden_states": "it would include rejected drafts",
    "prompt_lookup_num_tokens": "use recipe='recycle:window={next}', which drafts from an n-gram table built online",
    "assistant_early_exit": "use recipe='layer-skip:layers={value}'",
    "use_mtp": "use recipe='eagle' or 'medusa' with heads=",
    "speculation_type": "use a recipe with draft_model= or heads=",
    "penalty_alpha": "use sampling or greedy search",
    "dola_layers": "use sampling or greedy search",
    "num_beam_groups": "use sampling or greedy search",
    "diversity_penalty": "use sampling or greedy search",
    "constraints": "use prefix_allowed_tokens_fn",
    "force_words_ids": "use prefix_allowed_tokens_fn",
    "cache_config": "mmspec uses a KV cache of its own, in the dtype of the model",
    "max_cache_len": "mmspec allocates a KV cache of its own, as long as prompt and new tokens",
    "compile_config": "compile the model with torch.compile, or use CUDA graphs, which mmspec captures itself",
    "continuous_batching_config": "leave it out",
    "prefill_chunk_size": "mmspec reads the prompt in one call",
}
OFF: Mapping[str, tuple[Any, ...]] = {"num_beam_groups": (1,), "diversity_penalty": (0.0,)}
# Settings of a draft model in transformers' assisted decoding, with their defaults.
ASSISTANT = {
    "num_assistant_tokens": (20, "use recipe='draft:window={next}'"),
    "num_assistant_tokens_schedule": ("constant", "use recipe='draft:window=auto'"),
    "assistant_confidence_threshold": (0.4, "an exact recipe cannot stop a draft by the confidence of the draft model"),
    "assistant_ensemble_weight": (None, "it would change the distribution; leave it out"),
}

SYNCED = (
    "synced_gpus=True is not supported; processes make different numbers of target calls, for which ZeRO-3 and FSDP "
    "would wait for ever: shard the model with tp_plan or device_map"
)


def refuse_settings(config: Any) -> None:
    """Checks that a generation config sets nothing that would be ignored.

    Args:
        config: The prepared `GenerationConfig`.

    Raises:
        ArgumentError: If it sets something in `REFUSED`, or a cache that mmspec does not have.
    """
    for name, advice in REFUSED.items():
        value = getattr(config, name, None)
        if value is not None and value is not False and value not in OFF.get(name, ()):
            raise ArgumentError(refusal(name, value, advice))
    kind = str(config.cache_implementation)
    if "offloaded" in kind or kind == "quantized":
        raise ArgumentError(
            f"cache_implementation={kind!r} is not supported; mmspec uses a static KV cache of its own, in the dtype "
            "and on the device of the model"
        )


def refuse_call(model: Any, config: Any) -> None:
    """Checks what a call asks for, beside what its model is saved with.

    Args:
        config: The prepared `GenerationConfig`.

    Raises:
        ArgumentError: If the call sets `use_cache=False`, or processes would wait for each other at each call.
    """
    saved = getattr(model, "generation_config", None)  # training saves models without caches
    if config.use_cache is False and getattr(saved, "use_cache", None) is not False:
        raise ArgumentError("use_cache=False is not supported; drafts are verified on the KV cache: leave it out")
    # The default of transformers' `synced_gpus`.
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    several = several and torch.distributed.get_world_size() > 1
    if several and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)):
        raise ArgumentError(SYNCED)


def refuse_assistant_settings(arguments: Mapping[str, Any]) -> None:
    """Checks that a call of `generate` with an assistant model sets nothing that would be ignored.

    Raises:
        ArgumentError: If it sets something in `ASSISTANT`.
    """
    config = arguments.get("generation_config")
    for name, (default, advice) in ASSISTANT.items():
        value = arguments.get(name, getattr(config, name, None))
        if value is not None and value != default:
            raise ArgumentError(refusal(name, value, advice))


def refusal(name: str, value: Any, advice: str) -> str:
    """The message for a setting that is refused."""
    following = value + 1 if isinstance(value, int) else value
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{name}={shown} is not supported; {advice.format(value=value, next=following)}"
