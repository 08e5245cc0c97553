"""What transformers prepared for a generation loop, read into the loop's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    LogitNormalization,
    MaxLengthCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.errors import ArgumentError, PromptError
from mmspec.hf.allowed_tokens import AllowedFn, ask
from mmspec.hf.logits_processors import KNOWN, rule_of
from mmspec.hf.plan import PlanRequest
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

# In the order in which `mmspec.sampling.sampler` applies them; transformers builds its list in the same one.
ORDER = (
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    LogitNormalization,
)
# The engine sees to these itself.
IGNORED = ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "return_dict")


def read_processors(processors: Any) -> tuple[dict[type, Any], tuple[LogitsProcessor, ...]]:
    """The logits processors of the distribution by class, and those that are rules of the prefix in order.

    Raises:
        ArgumentError: For a processor that has no place in either, and for one out of order.
    """
    found: dict[type, Any] = {}
    rules: list[LogitsProcessor] = []
    last = -1
    for processor in processors:
        kind = type(processor)
        if kind in KNOWN:
            if last >= ORDER.index(TemperatureLogitsWarper):
                raise ArgumentError(f"logits_processor has {kind.__name__} after temperature, top-k or top-p")
            rules.append(rule_of(processor))
            continue
        if kind not in ORDER or kind in found:
            names = ", ".join(known.__name__ for known in (*ORDER, *KNOWN))
            what = "twice" if kind in found else "which mmspec cannot verify drafts with"
            raise ArgumentError(f"logits_processor has {kind.__name__}, {what}; it may have one each of {names}")
        if ORDER.index(kind) < last:
            raise ArgumentError(f"logits_processor has {kind.__name__} too late; temperature, top-k and top-p go last")
        last = ORDER.index(kind)
        found[kind] = processor
    return found, tuple(rules)


def read_sampling(found: Mapping[type, Any], do_sample: bool) -> SamplingParams:
    """Temperature, top-k and top-p; temperature 0 when nothing is sampled."""
    if not do_sample:
        return SamplingParams(temperature=0)
    temperature, top_k, top_p = (found.get(kind) for kind in ORDER[2:5])
    return SamplingParams(
        temperature=1.0 if temperature is None else float(temperature.temperature),
        top_k=0 if top_k is None else int(top_k.top_k),
        top_p=1.0 if top_p is None else float(top_p.top_p),
    )


def read_length(stopping_criteria: Any, prompt: int) -> tuple[int, frozenset[int]]:
    """New tokens asked for, and the ids that end a row.

    Raises:
        ArgumentError: For any other criterion.
    """
    length: int | None = None
    ends: frozenset[int] = frozenset()
    for criterion in stopping_criteria:
        if type(criterion) is MaxLengthCriteria:
            length = int(criterion.max_length) - prompt
        elif type(criterion) is EosTokenCriteria:
            ends = frozenset(criterion.eos_token_id.flatten().tolist())
        else:
            raise ArgumentError(
                f"stopping_criteria has {type(criterion).__name__}, which looks at one token at a time; "
                "use max_new_tokens and eos_token_id"
            )
    if length is None or length < 1:
        raise ArgumentError("max_new_tokens is not set; give the number of tokens to make, 1 or more")
    return length, ends


def refuse_modes(config: Any, inputs: Mapping[str, Any], embeds: bool = False) -> None:
    """Checks the way of decoding that was asked for.

    Raises:
        ArgumentError: For anything but sampling or greedy search from a prompt, of ids unless `embeds`.
    """
    if config.num_beams not in (None, 1):
        raise ArgumentError(f"num_beams={config.num_beams} is not supported; mmspec samples, or is greedy")
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise ArgumentError(f"{name}=True is not supported; drafts that are not taken would be among them")
    cache = inputs.get("past_key_values")
    if cache is not None and int(cache.get_seq_length()) > 0:
        raise ArgumentError("past_key_values already holds tokens; mmspec reads the prompt itself: leave it out")
    if inputs.get("inputs_embeds") is not None and not embeds:
        raise ArgumentError("inputs_embeds is not supported; give input_ids")


def read_request(
    model: Any,
    input_ids: Tensor,
    found: Mapping[type, Any],
    rules: tuple[LogitsProcessor, ...],
    length: int,
    vocab_size: int,
    config: Any,
    inputs: Mapping[str, Any],
) -> PlanRequest:
    """Everything a model's adapter wants to know; `found` and `rules` are what `read_processors` gave.

    Raises:
        PromptError: For prompts that are padded on the right.
        ArgumentError: For what `ask` refuses.
    """
    guidance = found.get(UnbatchedClassifierFreeGuidanceLogitsProcessor)
    negative: Mapping[str, Any] = guidance.unconditional_context if guidance is not None else {}
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
        negative_ids=negative.get("input_ids"),
        negative_mask=negative.get("attention_mask"),
        allowed=None if allowed_fn is None else ask(allowed_fn, input_ids, length, vocab_size),
        allowed_fn=allowed_fn,
        rules=rules,
        # A penalty of single tokens needs those of the others only where log-probabilities are guided.
        whole=any(type(rule) is not RepetitionPenalty or guidance is not None for rule in rules),
        config=config,
        inputs={name: value for name, value in inputs.items() if name not in IGNORED},
    )
