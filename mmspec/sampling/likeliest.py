"""The likeliest tokens of distributions; of equally likely ones, the first."""

from __future__ import annotations

import torch
from torch import Tensor


def likeliest(p: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of each distribution, as `mmspec.kernels.likeliest` finds them.

    `torch.topk` takes any of equally likely tokens, such as those that a top-k cuts off, and in any order.

    Args:
        p: float32 [..., V], not negative.
        count: Tokens of each, n; at most V.

    Returns:
        Tokens int64 [..., n], the likeliest one first; and their probabilities float32 [..., n].
    """
    # Bits of numbers that are not negative are in the order of the numbers; below them, the tokens in reverse.
    order = (p.contiguous().view(torch.int32).long() << 32) - torch.arange(p.shape[-1], device=p.device)
    tokens = order.topk(count).indices
    return tokens, p.gather(-1, tokens)
