"""Janus and Janus-Pro: images have a separate vocabulary, with its own embedding and head."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import Plan, PlanRequest, position_ids_of, refuse_inputs
from mmspec.sampling.params import guidance_of_call

DEFAULT_SCALE = 5.0


def vocab_size(model: Any) -> int:
    """The number of ids that the model's image logits cover."""
    return int(model.model.vqmodel.config.num_embeddings)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request is decoded: one image, whatever `max_new_tokens` is; the result is its codes without the prompt.

    The unconditional prompts are the prompts with all tokens but the begin tokens replaced by padding, which is not
    masked.

    Raises:
        ArgumentError: If a prompt does not end with the begin-of-image token, or the request has a negative prompt,
            `prefix_allowed_tokens_fn` or logits processors.
    """
    refuse_inputs(model, request)
    refuse_text(request)
    if request.negative_ids is not None:
        raise ArgumentError(
            "negative_prompt_ids is not supported for Janus, whose unconditional prompt is fixed; leave it out"
        )
    if request.allowed is not None:
        raise ArgumentError(
            "prefix_allowed_tokens_fn is not supported for Janus, whose images allow all codes; leave it out"
        )
    core = model.model
    text = model.get_input_embeddings()
    scale = guidance_of(model, request)
    positions = position_ids_of(request.mask)
    ids = request.input_ids
    uncond = Prompt(text(unconditional(ids, request.config)), request.mask, positions) if scale != 1 else None
    length = int(core.vision_model.config.num_image_tokens)
    side = math.isqrt(length)

    return Plan(
        Backbone(
            core.language_model,
            model.prepare_embeddings_for_image_generation,
            core.generation_head,
            vocab_size(model),
            ids.device,
        ),
        Prompt(text(ids), request.mask, positions),
        uncond,
        length,
        width=side if side * side == length else None,
        guidance_scale=scale,
        ends=False,
        keep_prompt=False,
    )


def begin_of_image(config: Any) -> int | None:
    """The id in a generation config that begins an image; None if it has none."""
    begin = (getattr(config, "generation_kwargs", None) or {}).get("boi_token_id")
    return None if begin is None else int(begin)


def refuse_text(request: PlanRequest) -> None:
    """Checks that all prompts end with the beginning of an image; without it Janus answers in text.

    Raises:
        ArgumentError: If one does not.
    """
    begin = begin_of_image(request.config)
    if begin is not None and not bool((request.input_ids[:, -1] == begin).all()):
        raise ArgumentError(
            f"input_ids does not end with the begin-of-image id {begin}, so that the answer is text, which mmspec does "
            "not generate for Janus; use processor(..., generation_mode='image'), or leave out custom_generate"
        )


def guidance_of(model: Any, request: PlanRequest) -> float:
    """The guidance scale of a call; 1 and below is off.

    Raises:
        ArgumentError: If it has none. Janus's own `generate` sets it to None on the way to `GenerationMixin.generate`,
            and drops logits processors, so that a call without one may be a call that has lost both.
    """
    if request.guidance_scale is None:
        raise ArgumentError(
            "guidance_scale is not set, or Janus's own generate has dropped it; call "
            f"GenerationMixin.generate(model, ..., guidance_scale={DEFAULT_SCALE:g}, custom_generate=mmspec.generate)"
        )
    return guidance_of_call(request.guidance_scale)


def unconditional(ids: Tensor, config: Any) -> Tensor:
    """Prompts int64 [B, T] with all ids but begin-of-text and begin-of-image replaced by padding.

    Raises:
        ArgumentError: If the generation config has no id for one of the three.
    """
    begin = begin_of_image(config)
    for name, value in (
        ("pad_token_id", config.pad_token_id),
        ("bos_token_id", config.bos_token_id),
        ('generation_kwargs["boi_token_id"]', begin),
    ):
        if value is None:
            raise ArgumentError(
                f"model.generation_config.{name} is None; guidance needs it (set it, or guidance_scale=1)"
            )
    return ids.masked_fill((ids != config.bos_token_id) & (ids != begin), config.pad_token_id)
