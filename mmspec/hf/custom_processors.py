"""Logits processors of classes that mmspec does not know, as functions of the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.errors import ArgumentError
from mmspec.hf.plan import Allowed


def check_processor(processor: Any, prompts: Tensor, vocab_size: int) -> None:
    """Checks that a logits processor is a function of one row's prefix and logits, as drafted positions require.

    The processor is called with prefixes that differ from those of token-by-token decoding. A difference that shows
    only after more tokens is not found.

    Args:
        processor: A processor of transformers' form: ids int64 [B, n] and logits float32 [B, V] to logits.
        prompts: int64 [B, T].
        vocab_size: V.

    Raises:
        ArgumentError: If two calls with the same arguments differ, or a row's result depends on the other rows.
    """
    name = type(processor).__name__
    logits = torch.linspace(-1, 1, vocab_size, device=prompts.device).expand(len(prompts), -1)

    def call(ids: Tensor) -> Tensor:
        out = processor(ids.clone(), logits[: len(ids)].clone())
        if not isinstance(out, Tensor) or out.shape != logits[: len(ids)].shape:
            raise ArgumentError(f"logits_processor {name} does not return logits of the shape that it is given")
        return out

    try:
        first = call(prompts[:1])
        call(torch.cat([prompts[:1], prompts[:1, -1:]], dim=1))
        again, batch = call(prompts[:1]), call(prompts)
        single = torch.cat([call(row[None]) for row in prompts])
    except (TypeError, IndexError, RuntimeError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ArgumentError(
            f"logits_processor {name} cannot be called with the ids and logits of one row: {reason}"
        ) from error
    if not torch.equal(first, again):
        raise ArgumentError(
            f"logits_processor {name} keeps state or is random: two calls with the same ids and logits differ; with "
            "drafts it must be a function of the ids and the logits"
        )
    if not torch.equal(batch, single):
        raise ArgumentError(
            f"logits_processor {name} treats a row by its place in the batch; it must be a function of the row's ids "
            "and logits"
        )


def allowed_ids(allowed: Allowed, start: int) -> LogitsProcessor:
    """Excludes the ids that `prefix_allowed_tokens_fn` does not allow, for processors that come after it.

    Args:
        allowed: The allowed ids, the same in all rows.
        start: Tokens of the prompt.
    """
    kinds, ids = allowed.kind, allowed.ids

    def process(prefix: Tensor, logits: Tensor) -> Tensor:
        position = (prefix != -1).sum(-1) - start
        kind = kinds[position.clamp(max=len(kinds) - 1)]
        return logits.masked_fill(~ids[kind], -torch.inf)

    return process


def after_allowed_ids(
    processors: Sequence[LogitsProcessor], custom: Sequence[Any], allowed: Allowed | None, start: int
) -> tuple[LogitsProcessor, ...]:
    """Processors with the exclusion of ids that are not allowed before them, where one of them may depend on it.

    Args:
        processors: In order.
        custom: Those of unknown classes.
        allowed: The ids that `prefix_allowed_tokens_fn` allows, or None.
        start: Tokens of the prompt.

    Raises:
        ArgumentError: If the rows of the batch allow different ids.
    """
    if allowed is None or not custom:
        return tuple(processors)
    if allowed.kind.ndim == 2:
        raise ArgumentError(
            f"logits_processor {type(custom[0]).__name__} is not possible together with a prefix_allowed_tokens_fn "
            "that allows different ids in different rows; generate the rows one by one"
        )
    return (allowed_ids(allowed, start), *processors)
