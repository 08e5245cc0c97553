"""Logits processors of transformers that look back, or at nothing but the logits, as prefix rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AlternatingCodebooksLogitsProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.generation.logits_process import BarkEosPrioritizerLogitsProcessor

from mmspec.decoding.processed_target import LogitsProcessor
from mmspec.sampling.logits_processors import RepetitionPenalty, one_by_one

# Those that keep nothing between calls and treat every id by itself, so that it does not matter on which side of
# `prefix_allowed_tokens_fn` they stand.
LOOK_BACK: tuple[type, ...] = (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
)
ANYWHERE: tuple[type, ...] = (SuppressTokensLogitsProcessor, BarkEosPrioritizerLogitsProcessor)
KNOWN = (RepetitionPenaltyLogitsProcessor, AlternatingCodebooksLogitsProcessor, *LOOK_BACK, *ANYWHERE)


def rule_of(processor: Any) -> LogitsProcessor:
    """A processor of a class in `KNOWN` as a rule over all ids of the model."""
    kind = type(processor)
    if kind is RepetitionPenaltyLogitsProcessor:
        # transformers gives it the length of each row's padding, which does not count here either.
        skip = processor.prompt_ignore_length
        return RepetitionPenalty(processor.penalty, skip if isinstance(skip, int) else 0)
    if kind is AlternatingCodebooksLogitsProcessor:
        return alternating(processor.input_start_len, processor.semantic_vocab_size, processor.codebook_size)
    if kind in ANYWHERE:
        ask: Callable[[Tensor, Tensor], Tensor] = processor
        return ask
    return one_by_one(processor)


def alternating(start: int, first: int, size: int) -> LogitsProcessor:
    """Two codebooks by turns, `size` ids each from `first` on; of the second, what lies after it is open too."""

    def rule(prefix: Tensor, logits: Tensor) -> Tensor:
        turn = ((prefix != -1).sum(-1, keepdim=True) - start) % 2
        ids = torch.arange(logits.shape[-1], device=logits.device)
        allowed = torch.where(turn == 0, (ids >= first) & (ids < first + size), ids >= first + size)
        return logits.masked_fill(~allowed, -torch.inf)

    return rule
