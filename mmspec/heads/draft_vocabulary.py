"""Reduced draft vocabularies: heads that draft some of the target's tokens only, as those of `speculators` do.

A head with one has the buffers `d2t`, int64 [drafted], the target's token that draft token i is, minus i; and `t2d`,
bool [V], whether a token of the target can be drafted.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.errors import ArgumentError


def register_vocabulary(head: nn.Module, vocab_size: int, drafted: int) -> None:
    """Registers the buffers: those of the first `drafted` tokens, or None if all are drafted."""
    reduced = drafted < vocab_size
    head.register_buffer("d2t", torch.zeros(drafted, dtype=torch.int64) if reduced else None)
    head.register_buffer("t2d", torch.arange(vocab_size) < drafted if reduced else None)


def restrict(d2t: Tensor, t2d: Tensor, tokens: Tensor) -> None:
    """Sets the buffers to a draft vocabulary, in place.

    Args:
        d2t: The buffer.
        t2d: The buffer.
        tokens: The target's tokens that are drafted, int64 [drafted], in the order of the draft tokens.

    Raises:
        ArgumentError: If they are not different tokens of the target, or are of another number.
    """
    size, vocab = len(d2t), len(t2d)
    if len(tokens) != size or len(tokens.unique()) != size or not ((tokens >= 0) & (tokens < vocab)).all():
        raise ArgumentError(f"a draft vocabulary must be {size} different tokens below {vocab}")
    d2t.copy_(tokens - torch.arange(size))
    t2d.zero_()[tokens] = True


def expand(logits: Tensor, d2t: Tensor | None, vocab_size: int) -> Tensor:
    """Logits of draft tokens [..., drafted] as logits of the target's tokens [..., V], -inf for those not drafted."""
    if d2t is None:
        return logits
    tokens = d2t + torch.arange(len(d2t), device=d2t.device)
    full = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    return full.index_copy(-1, tokens.to(logits.device), logits)
