"""Logits processors of transformers as functions of the prefix, for `mmspec.decoding.processed_target`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AlternatingCodebooksLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
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

# Stateless processors that treat every id on its own, so that their order relative to `prefix_allowed_tokens_fn` does
# not matter. Classes in PREFIX_DEPENDENT read the ids before the position, classes in
# POSITION_INDEPENDENT only the logits.
PREFIX_DEPENDENT: tuple[type, ...] = (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
)
POSITION_INDEPENDENT: tuple[type, ...] = (
    SuppressTokensLogitsProcessor,
    BarkEosPrioritizerLogitsProcessor,
    InfNanRemoveLogitsProcessor,
)
KNOWN = (
    RepetitionPenaltyLogitsProcessor,
    AlternatingCodebooksLogitsProcessor,
    *PREFIX_DEPENDENT,
    *POSITION_INDEPENDENT,
)


def convert_processor(processor: Any) -> LogitsProcessor:
    """A processor of a class in `KNOWN` as a function of the prefix and the logits of all ids."""
    kind = type(processor)
    if kind is RepetitionPenaltyLogitsProcessor:
        # A tensor holds the padding of each row, which is not part of the prefix here.
        skip = processor.prompt_ignore_length
        return RepetitionPenalty(processor.penalty, skip if isinstance(skip, int) else 0)
    if kind is AlternatingCodebooksLogitsProcessor:
        return alternating(processor.input_start_len, processor.semantic_vocab_size, processor.codebook_size)
    if kind in POSITION_INDEPENDENT:
        convert: Callable[[Tensor, Tensor], Tensor] = processor
        return convert
    return one_by_one(processor)


def alternating(start: int, first: int, size: int) -> LogitsProcessor:
    """Alternates between two codebooks of `size` ids each: ids from `first` on, and ids from `first + size` on.

    Args:
        start: Tokens of the prompt.
        first: The first id of the first codebook.
        size: Ids of the first codebook; the second one has all ids after it.
    """

    def process(prefix: Tensor, logits: Tensor) -> Tensor:
        turn = ((prefix != -1).sum(-1, keepdim=True) - start) % 2
        ids = torch.arange(logits.shape[-1], device=logits.device)
        allowed = torch.where(turn == 0, (ids >= first) & (ids < first + size), ids >= first + size)
        return logits.masked_fill(~allowed, -torch.inf)

    return process
