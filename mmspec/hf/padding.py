"""Padding of tokenizers that were saved without a token for it."""

from __future__ import annotations

from typing import Any

from mmspec.errors import ArgumentError


def with_padding(processor: Any) -> Any:
    """The processor or tokenizer; without a token for padding it gets that of an end, which masks leave out.

    Raises:
        ArgumentError: If it has no such token either.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    if getattr(tokenizer, "pad_token", "") is None:
        known = (tokenizer.eos_token, tokenizer.unk_token, tokenizer.bos_token)
        if not any(known):
            raise ArgumentError("processor.pad_token is None; set it, as prompts of a batch are padded")
        tokenizer.pad_token = next(filter(None, known))
    return processor
