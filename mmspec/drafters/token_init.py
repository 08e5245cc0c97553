"""Token initialization: drafts for positions that are new to the window, from the left and the upper neighbor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# (left, up, u) -> tokens, int64 [B] each. `left` is the token before the position. `up` is the token above it, or in a
# stream the one before `left`; -1 if there is none. `u` float32 [B] is uniform in [0, 1). The token has a one-hot q, so
# that any initialization is exact.
TokenInit = Callable[[Tensor, Tensor, Tensor], Tensor]


def repeat_left(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """Repeats the token before."""
    return left


def repeat_up(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """Repeats the token above, or in the first line the token before. For 2-D token maps only."""
    return torch.where(up >= 0, up, left)


def random_token(vocab_size: int) -> TokenInit:
    """An initialization with uniformly random tokens."""

    def init(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        return (u * vocab_size).long().clamp_(max=vocab_size - 1)

    return init
