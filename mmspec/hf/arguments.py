"""Conversion of the arguments that transformers prepares for a generation loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    LogitNormalization,
    MaxLengthCriteria,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.errors import ArgumentError, PromptError
from mmspec.hf.allowed_tokens import AllowedFn, tabulate
from mmspec.hf.logits_processors import KNOWN, convert_processor
from mmspec.hf.modes import refuse_settings
from mmspec.hf.plan import PlanRequest
from mmspec.hf.prepared_inputs import SET_BY_DECODING, refuse_filled_cache
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

# In the order in which `mmspec.sampling.sampler` applies them, which is that of transformers.
ORDER = (
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    MinPLogitsWarper,
    TypicalLogitsWarper,
    LogitNormalization,
)
NO_NEGATIVE: Mapping[str, Any] = {"input_ids": None, "attention_mask": None}


def read_processors(
    processors: Any, convert_unknown: Callable[[Any], LogitsProcessor] | None = None
) -> tuple[dict[type, Any], tuple[LogitsProcessor, ...]]:
    """Splits logits processors into those of the sampler, by class, and functions of the prefix, in order.

    Args:
        processors: In order.
        convert_unknown: Converts processors of classes that are not transformers'; None refuses them.

    Raises:
        ArgumentError: If a processor is of another class, or out of order.
    """
    found: dict[type, Any] = {}
    converted: list[LogitsProcessor] = []
    last = -1
    for processor in processors:
        kind = type(processor)
        foreign = convert_unknown is not None and not kind.__module__.startswith("transformers.")
        if kind in KNOWN or foreign:
            if last >= ORDER.index(TemperatureLogitsWarper):
                raise ArgumentError(f"logits_processor has {kind.__name__} after temperature, top-k or top-p")
            convert = convert_processor if convert_unknown is None or kind in KNOWN else convert_unknown
            converted.append(convert(processor))
            continue
        if kind not in ORDER or kind in found:
            what = " twice; leave one out" if kind in found else ", which is not supported with drafts"
            raise ArgumentError(f"logits_processor has {kind.__name__}{what}; docs/arguments.md lists what is possible")
        if ORDER.index(kind) < last:
            raise ArgumentError(
                f"logits_processor has {kind.__name__} out of order; temperature, top-k and top-p come last"
            )
        last = ORDER.index(kind)
        found[kind] = processor
    return found, tuple(converted)


def read_sampling(found: Mapping[type, Any], do_sample: bool) -> SamplingParams:
    """Temperature, top-k, top-p, min-p and typical-p; temperature 0 for greedy search.

    Raises:
        ArgumentError: If min-p or typical-p must keep more than one token.
    """
    if not do_sample:
        return SamplingParams(temperature=0)
    temperature, top_k, top_p, min_p, typical_p = (found.get(kind) for kind in ORDER[2:7])
    for name, each in (("min_p", min_p), ("typical_p", typical_p)):
        if each is not None and each.min_tokens_to_keep != 1:
            raise ArgumentError(f"{name} with min_tokens_to_keep={each.min_tokens_to_keep} is not supported; use 1")
    return SamplingParams(
        temperature=1.0 if temperature is None else float(temperature.temperature),
        top_k=0 if top_k is None else int(top_k.top_k),
        top_p=1.0 if top_p is None else float(top_p.top_p),
        min_p=0.0 if min_p is None else float(min_p.min_p),
        typical_p=1.0 if typical_p is None else float(typical_p.mass),
    )


def read_padding(config: Any) -> int | None:
    """The id of padding: that of a prepared `GenerationConfig`, or the first end of sequence; None without both."""
    pad = getattr(config, "_pad_token_tensor", config.pad_token_id)
    return None if pad is None else int(pad)


def read_length(stopping_criteria: Any, prompt: int) -> tuple[int, frozenset[int]]:
    """The number of new tokens, and the ids that end a row, for models that evaluate no other criteria.

    Args:
        prompt: Tokens of the prompt.

    Raises:
        ArgumentError: If there is no length, or a criterion other than a length and end-of-sequence ids.
    """
    length, ends, others = read_stopping(stopping_criteria, prompt)
    refuse_criteria(others)
    return length, ends


def read_stopping(stopping_criteria: Any, prompt: int) -> tuple[int, frozenset[int], tuple[Any, ...]]:
    """The number of new tokens, the ids that end a row, and all other criteria.

    Args:
        prompt: Tokens of the prompt.

    Raises:
        ArgumentError: If there is no length.
    """
    length: int | None = None
    ends: frozenset[int] = frozenset()
    others: list[Any] = []
    for criterion in stopping_criteria:
        if type(criterion) is MaxLengthCriteria:
            length = int(criterion.max_length) - prompt
        elif type(criterion) is EosTokenCriteria:
            ends |= frozenset(criterion.eos_token_id.flatten().tolist())
        else:
            others.append(criterion)
    if length is None or length < 1:
        raise ArgumentError("max_new_tokens is not set; give the number of tokens to generate, 1 or more")
    return length, ends, tuple(others)


def refuse_criteria(criteria: Sequence[Any]) -> None:
    """Checks that there is no criterion besides a length and end-of-sequence ids.

    Raises:
        ArgumentError: If there is one.
    """
    if criteria:
        raise ArgumentError(
            f"stopping_criteria has {type(criteria[0]).__name__}, which is a function of the ids of one vocabulary and "
            "is not supported for this model; use max_new_tokens and eos_token_id"
        )


def refuse_modes(config: Any, inputs: Mapping[str, Any], embeds: bool = False) -> None:
    """Checks that a call samples or searches greedily, starts from a prompt, and sets nothing that would be ignored.

    Args:
        config: The prepared `GenerationConfig`.
        inputs: Inputs of the model.
        embeds: Whether the model accepts a prompt in `inputs_embeds`.

    Raises:
        ArgumentError: If the call uses beams or another mode of decoding, returns scores or hidden states, chooses a
            cache that mmspec does not have, continues from a filled cache, or passes `inputs_embeds` that the model
            does not accept.
    """
    if config.num_beams not in (None, 1):
        raise ArgumentError(f"num_beams={config.num_beams} is not supported; use sampling or greedy search")
    refuse_settings(config)
    refuse_filled_cache(inputs)
    if inputs.get("inputs_embeds") is not None and not embeds:
        raise ArgumentError("inputs_embeds is not supported; give input_ids")


def read_request(
    model: Any,
    input_ids: Tensor,
    found: Mapping[type, Any],
    processors: tuple[LogitsProcessor, ...],
    length: int,
    vocab_size: int,
    config: Any,
    inputs: Mapping[str, Any],
    given: Collection[str] | None = None,
) -> PlanRequest:
    """The request that a model's adapter plans for; `found` and `processors` are the result of `read_processors`.

    `given` are the keywords of the caller, as in `mmspec.generate`.

    Raises:
        PromptError: If prompts are padded on the right.
        ArgumentError: If `prefix_allowed_tokens_fn` depends on generated tokens; see `tabulate`.
    """
    guidance = found.get(UnbatchedClassifierFreeGuidanceLogitsProcessor)
    negative: Mapping[str, Any] = NO_NEGATIVE if guidance is None else guidance.unconditional_context
    prefix = found.get(PrefixConstrainedLogitsProcessor)
    allowed_fn: AllowedFn | None = None if prefix is None else prefix._prefix_allowed_tokens_fn
    mask = inputs.get("attention_mask")
    if mask is not None and not bool((mask[:, -1] != 0).all()):
        raise PromptError("attention_mask hides the last token of a prompt; pad on the left (padding_side='left')")
    return PlanRequest(
        input_ids=input_ids,
        mask=torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.to(input_ids.device).bool(),
        position_ids=inputs.get("position_ids"),
        length=length,
        guidance_scale=config.guidance_scale if guidance is None else float(guidance.guidance_scale),
        negative_ids=negative["input_ids"],
        negative_mask=negative["attention_mask"],
        allowed=None if allowed_fn is None else tabulate(allowed_fn, input_ids, length, vocab_size),
        allowed_fn=allowed_fn,
        processors=processors,
        # A repetition penalty changes logits one by one; it needs all only where guidance mixes log-probabilities.
        all_logits=any(type(p) is not RepetitionPenalty or guidance is not None for p in processors),
        config=config,
        inputs={name: value for name, value in inputs.items() if name not in (*SET_BY_DECODING, "position_ids")},
        given=given,
    )
