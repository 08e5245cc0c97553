"""Rotary embeddings whose cosines and sines are rounded to bfloat16, as models have them that were trained so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding


class RoundedRotary(Qwen3RotaryEmbedding):
    """The rotary embedding of a Qwen3 or a Llama, rounded to bfloat16 whatever the dtype of the model."""

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        cos, sin = super().forward(x.float(), position_ids)
        return cos.to(torch.bfloat16).to(x.dtype), sin.to(torch.bfloat16).to(x.dtype)
