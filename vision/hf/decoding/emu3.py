"""Emu3: images are written in the text vocabulary, line by line."""

from __future__ import annotations

from typing import Any

from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_inputs, shared_vocabulary_plan


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """`prefix_allowed_tokens_fn` gives the lines; negative prompts are read at their own length."""
    refuse_inputs(model, request)
    return shared_vocabulary_plan(model, model.model.text_model, model.get_input_embeddings(), model.lm_head, request)
