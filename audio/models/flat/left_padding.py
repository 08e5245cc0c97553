"""Prompts of a flat model as one batch, padded on the left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.hf.causal_target import Prompt
from mmspec.hf.plan import position_ids_of


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """The ids int64 [B, T] of prompts, padded with 0 on the left, and their mask bool [B, T], False on padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return ids, torch.arange(longest, device=device) >= longest - lengths


def flat_prompt(model: Any, rows: Sequence[Sequence[int]]) -> Prompt:
    """The prompts of a model whose ids are all embedded by its input embeddings."""
    ids, mask = left_padded(rows, model.device)
    return Prompt(model.get_input_embeddings()(ids), mask, position_ids_of(mask))
