"""Bark: a semantic stage from text to codes, and a coarse stage to two codebooks of EnCodec in one alternating stream.

`BarkModel.generate(..., custom_generate=mmspec.generate)` decodes both stages by any recipe; the third stage is not
autoregressive. The coarse stage builds a new prompt from the last 630 tokens after every 60 tokens; each such window of
60 tokens is one run of the decoding loop.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import Backbone, Prompt
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer
from mmspec.hf.plan import (
    Plan,
    PlanRequest,
    logits_size,
    position_ids_of,
    refuse_guidance,
    refuse_inputs,
    shared_vocabulary_plan,
)


class SemanticStage:
    """The generate adapter of `BarkSemanticModel`, whose prompt consists of embeddings: the sum of text and a voice."""

    READS_EMBEDS = True

    def vocab_size(self, model: Any) -> int:
        return logits_size(model.lm_head)

    def plan(self, model: Any, request: PlanRequest) -> Plan:
        """How a request is decoded.

        Raises:
            ArgumentError: If another model made the prompt, as for a draft model.
        """
        refuse_inputs(model, request, "inputs_embeds")
        refuse_guidance(model, request)
        embed, prompt = model.input_embeds_layer, request.inputs["inputs_embeds"]
        mark = embed(torch.tensor(request.config.semantic_infer_token, device=prompt.device))
        if prompt.shape[-1] != len(mark) or not torch.equal(prompt[0, -1], mark):
            raise ArgumentError(
                "draft_model cannot draft Bark's semantic stage, whose prompt consists of the model's own embeddings; "
                "pass it as coarse_draft_model"
            )
        return Plan(
            Backbone(BarkLayers(model), embed, model.lm_head, logits_size(model.lm_head), prompt.device),
            Prompt(prompt, request.mask, position_ids_of(request.mask)),
            None,
            generation_length(model, request),
            history=request.input_ids,
        )


class CoarseStage:
    """The generate adapter of `BarkCoarseModel`."""

    def vocab_size(self, model: Any) -> int:
        return logits_size(model.lm_head)

    def plan(self, model: Any, request: PlanRequest) -> Plan:
        refuse_inputs(model, request, "position_ids")
        refuse_guidance(model, request)
        generation_length(model, request)
        plan = shared_vocabulary_plan(model, BarkLayers(model), model.input_embeds_layer, model.lm_head, request)
        # All windows share the user's seed; the salt, a hash of the prompt, gives each window its own random numbers.
        salt = tuple(zlib.crc32(row.cpu().numpy().tobytes()) for row in request.input_ids)
        return replace(plan, width=2, salt=salt)


SEMANTIC, COARSE = SemanticStage(), CoarseStage()


def generation_length(model: Any, request: PlanRequest) -> int:
    """Tokens to generate.

    Raises:
        ArgumentError: If the model has fewer positions.
    """
    positions, prompt = int(model.config.block_size), request.input_ids.shape[1]
    if prompt + request.length > positions + 1:
        raise ArgumentError(
            f"max_new_tokens={request.length} is not allowed; after a prompt of {prompt} tokens this model has "
            f"positions for {positions + 1 - prompt}"
        )
    return request.length


class BarkLayers(DecoderLayers):
    """The layers of a Bark model, whose own attention has one causal order for all rows."""

    def __init__(self, model: Any) -> None:
        super().__init__(model.layers, model.layernorm_final)
        self._positions = model.position_embeds_layer

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        def run(layer: Any, hidden: Tensor) -> Tensor:
            hidden = hidden + attend(layer.attn, layer.layernorm_1(hidden), mask, cache)
            return hidden + layer.mlp(layer.layernorm_2(hidden))

        return embeds + self._positions(positions), run


def attend(attention: Any, hidden: Tensor, mask: Tensor, cache: Any) -> Tensor:
    """Self-attention of hidden states [R, W, D]; `mask` [R, 1, W, end] is added to the attention scores."""

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)

    query, key, value = (heads(x) for x in attention.att_proj(hidden).split(attention.embed_dim, dim=-1))
    key, value = cache.update(key, value, attention.layer_idx)
    out: Tensor = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attention.out_proj(out.transpose(1, 2).flatten(-2))
