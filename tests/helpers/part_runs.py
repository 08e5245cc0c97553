"""Parts of texts that are decoded as a batch, to their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.recipes import Recipe
from mmspec.sampling.params import SamplingParams


def decode_rows(
    adapter: Any, parts: Sequence[Any], recipe: Recipe, samplings: Sequence[SamplingParams], seeds: Sequence[int]
) -> Tensor:
    """The tokens [B, N, *cell] of parts that share a batch, padded with zeros."""
    with torch.inference_mode():
        prepared = adapter.prepare_rows(parts, recipe, samplings)
    batch = prepared.batch(prepared.recipe or recipe, seeds)
    batch.run()
    rows = [batch.state.tokens(row) for row in range(len(seeds))]
    return pad_sequence(rows if prepared.tokens is None else [prepared.tokens(row) for row in rows], batch_first=True)
