"""ImageGPT: 512 colors in raster order, with learned positions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer
from mmspec.hf.plan import Plan, PlanRequest, logits_size, refuse_inputs, shared_vocabulary_plan


def vocab_size(model: Any) -> int:
    """The number of ids that the model's logits cover."""
    return logits_size(model.lm_head)


def plan(model: Any, request: PlanRequest) -> Plan:
    """How a request is decoded. The prompt is the start token, or that and the first tokens of an image.

    Raises:
        ArgumentError: If prompt and new tokens exceed the positions of the model.
    """
    refuse_inputs(model, request, "position_ids")
    longest = model.config.n_positions + 1
    if request.input_ids.shape[1] + request.length > longest:
        raise ArgumentError(
            f"max_length={request.input_ids.shape[1] + request.length} is not allowed; this model has "
            f"{model.config.n_positions} positions, so prompt and image may have at most {longest} tokens"
        )
    core = model.transformer
    result = shared_vocabulary_plan(model, ImageGPTLayers(core), core.wte, model.lm_head, request)
    side = math.isqrt(model.config.n_positions)
    return replace(result, width=side) if side**2 == model.config.n_positions else result


class ImageGPTLayers(DecoderLayers):
    """The layers of an ImageGPT.

    The model's own forward flattens a mask to two axes, and its attention cuts a causal table to the number of keys,
    which fits neither rows at different positions nor a window that reaches past the last position.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model.h, model.ln_f)
        self._positions = model.wpe

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        def run(block: Any, hidden: Tensor) -> Tensor:
            hidden = hidden + attend(block.attn, block.ln_1(hidden), mask, cache)
            return hidden + block.mlp(block.ln_2(hidden))

        return embeds + self._positions(positions), run


def attend(attention: Any, hidden: Tensor, mask: Tensor, cache: Any) -> Tensor:
    """Self-attention [R, W, D] with an additive mask [R, 1, W, end]."""

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)

    query, key, value = (heads(x) for x in attention.c_attn(hidden).split(attention.split_size, dim=-1))
    key, value = cache.update(key, value, attention.layer_idx)
    scale = attention.head_dim**-0.5 if attention.scale_attn_weights else 1.0
    if attention.scale_attn_by_inverse_layer_idx:
        scale /= attention.layer_idx + 1
    out: Tensor = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    return attention.c_proj(out.transpose(1, 2).flatten(-2))
