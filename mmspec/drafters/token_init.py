"""Start tokens: guesses for positions nobody has drafted yet, from the tokens to the left and above."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# (left, up, u) -> tokens, int64 [B] each. `left` is the token before; `up` the one above, in a stream the one before
# `left`, -1 where there is none; `u` float32 [B] uniform in [0, 1). The guess counts as certain (one-hot q), so any one
# is exact.
TokenInit = Callable[[Tensor, Tensor, Tensor], Tensor]


def repeat_left(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """The token before."""
    return left


def repeat_up(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """The token above; in the first line the token before. For maps of lines only."""
    return torch.where(up >= 0, up, left)


def random_token(vocab_size: int) -> TokenInit:
    """Any token, all alike."""

    def start(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        return (u * vocab_size).long().clamp_(max=vocab_size - 1)

    return start
