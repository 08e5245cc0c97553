"""Parts of texts that are decoded as a batch, to their end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.to_end import decode_to_end
from mmspec.recipes import Recipe, parse
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense


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


@torch.inference_mode()
def distance_of_probs(
    adapter: Any,
    part: Any,
    sampling: SamplingParams,
    tokens: Sequence[int],
    recorded: Sequence[Mapping[str, float]],
    last: SamplingParams | None = None,
    first: int = 0,
) -> float:
    """The largest difference between recorded probabilities along tokens and those that a part is sampled from.

    Args:
        adapter: The adapter.
        part: The part.
        sampling: Its sampling parameters.
        tokens: The tokens before each distribution, and more.
        recorded: The probabilities of one token after the other, by id; those left out are 0.
        last: Sampling parameters after the target's processors that replace the adapter's own.
        first: The id that the adapter's first token has there.
    """
    job, count = adapter.prepare_rows([part], parse("plain"), [sampling]), len(recorded)
    sampler = job.layout.sampler(job.samplings if last is None else [last], job.target.device)
    p = dense(sampler(job.target.prefill(), Numbers(np.zeros((1, 1), dtype=np.int64))))
    window = job.target.forward(torch.tensor([tokens[: count - 1]]), np.zeros(1, dtype=np.int64))
    p = torch.cat([p, dense(sampler(window, Numbers(np.arange(1, count)[None])))], dim=1)[0]
    q = torch.zeros_like(p)
    for row, probs in zip(q, recorded, strict=True):
        for name, value in probs.items():
            row[int(name) - first] = value
    return float((p - q).abs().max())
