"""The GPT-2 of XTTS-v2 (arXiv 2406.04904) inside the package coqui-tts, which passes arguments on to its `generate`.

With `xtts.inference(..., custom_generate=mmspec.generate, recipe="scd")` mmspec decodes the codes; text, voice and the
vocoder, which reads the GPT-2's hidden states, remain the package's. A prompt is kept in the model: embeddings of the
voice and the text. It is followed by the start token of audio, and codes have learned positions that begin there.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.plan import Plan, PlanRequest, refuse_guidance, refuse_inputs


def vocab_size(model: Any) -> int:
    """Codes and special tokens."""
    return int(model.lm_head[-1].out_features)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request of the package is decoded.

    Raises:
        ArgumentError: If the model is another package's of this name, has no prompt of this size, or too few positions.
    """
    if not hasattr(model, "pos_embedding") or not hasattr(model, "embeddings"):
        raise ArgumentError("GPT2InferenceModel is not that of coqui-tts 0.28 or later, which mmspec supports")
    refuse_inputs(model, request)
    refuse_guidance(model, request)
    ids, table = request.input_ids, model.pos_embedding.emb.weight
    prefix = getattr(model, "cached_prefix_emb", None)
    if prefix is None or prefix.shape[1] != ids.shape[1] - 1 or len(ids) % len(prefix):
        found = "none" if prefix is None else list(prefix.shape[:2])
        raise ArgumentError(
            f"input_ids has shape {list(ids.shape)}, the prompt that the model keeps {found}; call `inference` of the "
            "package, which makes both"
        )
    if request.length > len(table):
        raise ArgumentError(f"max_new_tokens={request.length} is not allowed; the model has {len(table)} positions")
    start = model.embeddings(ids[:, -1:])
    embeds = torch.cat([prefix.to(start.dtype).repeat_interleave(len(ids) // len(prefix), 0), start], dim=1)
    positions = torch.full_like(ids, len(table))
    positions[:, -1] = 0
    return Plan(
        Backbone(
            with_positions(model.transformer, table), model.embeddings, model.lm_head, vocab_size(model), ids.device
        ),
        Prompt(embeds, request.mask, positions[None]),
        None,
        request.length,
        history=ids,  # the package's ids of the prompt, which its repetition penalty counts
    )


def with_positions(decoder: Any, table: Tensor) -> Any:
    """A GPT-2 with learned positions of codes in place of those that the package removes; its weights are shared.

    Args:
        decoder: A `GPT2Model`.
        table: Vectors [P, D] of the positions; position P, that of the prompt, adds nothing.
    """
    made = copy.copy(decoder)
    made._modules = dict(decoder._modules)
    made.wpe = nn.Embedding.from_pretrained(torch.cat([table, torch.zeros_like(table[:1])]))
    return made
