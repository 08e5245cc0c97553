"""Emu3: images are ids of the text vocabulary, in lines."""

from __future__ import annotations

from typing import Any

from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_inputs, shared_vocabulary_plan


def vocab_size(model: Any) -> int:
    """The number of ids that the model's logits cover."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request is decoded. `prefix_allowed_tokens_fn` sets the lines; negative prompts may have another length."""
    refuse_inputs(model, request, "position_ids")
    return shared_vocabulary_plan(model, model.model.text_model, model.get_input_embeddings(), model.lm_head, request)
