"""X-Omni: prompts of text, then the codes of one image, which have a head of their own."""

from __future__ import annotations

from typing import Any

import torch

from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import Backbone, Prompt, slice_head
from mmspec.hf.plan import Plan, PlanRequest, negative_prompt, position_ids_of, refuse_inputs
from mmspec.sampling.constraints import Constraint
from mmspec.vision.hf.xomni import XOmniDecoder


def vocab_size(model: Any) -> int:
    """The number of ids that the model's logits cover: those of texts, then codes."""
    return int(model.config.vocab_size + model.config.image_vocab_size)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request is decoded: codes only, as the original code does for images.

    Raises:
        ArgumentError: If a prompt does not end with the mark of an image's codes.
    """
    refuse_inputs(model, request, "position_ids")
    first, codes = int(model.config.vocab_size), int(model.config.image_vocab_size)
    if not bool((request.input_ids[:, -1] >= first).all()):
        raise ArgumentError(
            "input_ids does not end with <IMAGE>, so that the answer is text, which mmspec does not generate for X-Omni"
        )
    allowed, constraint = request.allowed, None
    if allowed is not None:
        constraint = Constraint(allowed.kind, allowed.ids[:, first : first + codes].contiguous())
    scale = 1.0 if request.guidance_scale is None else float(request.guidance_scale)
    positions = position_ids_of(request.mask) if request.position_ids is None else request.position_ids[None]
    uncond = None
    if scale != 1:
        ids, mask = negative_prompt(request)
        # transformers numbers the tokens of a negative prompt from 0, padding included.
        every = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)[None]
        uncond = Prompt(model.embed(ids), mask, every)
    return Plan(
        Backbone(
            XOmniDecoder(model),
            lambda tokens: model.embed(tokens + first),
            slice_head(model.mm_head, 0, codes),
            codes,
            request.input_ids.device,
        ),
        Prompt(model.embed(request.input_ids), request.mask, positions),
        uncond,
        request.length,
        None if allowed is None else allowed.width,
        constraint,
        scale,
        first_id=first,
        ends=False,
    )
