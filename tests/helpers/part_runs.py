"""Parts of texts that are decoded as a batch, to their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.decoding.to_end import decode_to_end
from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams


def decode_rows(
    adapter: Any, parts: Sequence[Any], recipe: Recipe, sampling: SamplingParams, seeds: Sequence[int]
) -> Tensor:
    """The tokens [B, N, *cell] of parts that share a batch, with padding after the end of a row."""
    with torch.inference_mode():
        prepared = adapter.prepare_rows(parts, recipe, [sampling] * len(parts))
    batch = prepared.batch(prepared.recipe or recipe, seeds)
    decode_to_end(batch)
    found: Tensor = batch.state.result()
    return found if prepared.tokens is None else torch.stack([prepared.tokens(row) for row in found])
