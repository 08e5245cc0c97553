"""Janus and Janus-Pro: images in a vocabulary of their own, with its own embedding and head."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import Plan, PlanRequest, position_ids_of, refuse_inputs

DEFAULT_SCALE = 5.0


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over."""
    return int(model.model.vqmodel.config.num_embeddings)


def plan(model: Any, request: PlanRequest) -> Plan:
    """Image mode: as many tokens as an image has, whatever length was asked for, and nothing else in the result.

    The unconditional side is the prompt with everything but its begin tokens turned into padding that is looked at.
    """
    refuse_inputs(model, request)
    if request.negative_ids is not None:
        raise ArgumentError("negative_prompt_ids is not supported for Janus, which makes its own; leave it out")
    if request.allowed is not None:
        raise ArgumentError("prefix_allowed_tokens_fn is not supported for Janus, whose images have no other tokens")
    core = model.model
    text = model.get_input_embeddings()
    scale = DEFAULT_SCALE if request.guidance_scale is None else float(request.guidance_scale)
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


def unconditional(ids: Tensor, config: Any) -> Tensor:
    """The prompts int64 [B, T] with only the begin-of-text and begin-of-image tokens left.

    Raises:
        ArgumentError: When the generation config lacks one of the ids.
    """
    begin = (config.generation_kwargs or {}).get("boi_token_id")
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
