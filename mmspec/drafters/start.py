"""Start tokens: guesses for positions nobody has drafted yet, from the tokens to the left and above."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# (left, up, u) -> tokens, int64 [B] each. `left` is the token before; `up` the one above, -1 where there is none; `u`
# float32 [B] uniform in [0, 1). The guess counts as certain (one-hot q), so any guess is exact.
Start = Callable[[Tensor, Tensor, Tensor], Tensor]


def repeat_left(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """The token before."""
    return left


def repeat_up(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """The token above; in the first line, and where there are no lines, the token before."""
    return torch.where(up >= 0, up, left)


def random_token(vocab_size: int) -> Start:
    """Any token, all alike."""

    def start(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        return (u * vocab_size).long().clamp_(max=vocab_size - 1)

    return start


class NGramTable:
    """The likeliest token for each pair of left and upper neighbour.

    **Arguments:**

    - `best`: integer [V + 1, V]; `best[up, left]`, with row V for "no upper neighbour".
    """

    def __init__(self, best: Tensor) -> None:
        self.best = best

    @staticmethod
    def count(sequences: Tensor, width: int, vocab_size: int) -> NGramTable:
        """Counts a table from token maps int64 [n, N] with `width` tokens per line.

        A pair that was never seen falls back to the likeliest successor of its left token, and that to a repetition.
        """
        grid = sequences.long().unflatten(1, (-1, width))
        # In the first column the token above stands in for the missing one to the left, as in `neighbours`.
        left = torch.cat([torch.where(_has_up(grid), _up(grid), -1)[..., :1], grid[..., :-1]], dim=-1)
        up = torch.where(_has_up(grid), _up(grid), vocab_size)
        seen = left >= 0
        left, up, token = left[seen], up[seen], grid[seen]
        best = torch.arange(vocab_size).expand(vocab_size + 1, -1).clone()
        by_left = _most_frequent(left, token, vocab_size, vocab_size)
        best[:] = torch.where(by_left >= 0, by_left, torch.arange(vocab_size))
        by_pair = _most_frequent(up * vocab_size + left, token, (vocab_size + 1) * vocab_size, vocab_size)
        by_pair = by_pair.unflatten(0, (vocab_size + 1, vocab_size))
        return NGramTable(torch.where(by_pair >= 0, by_pair, best))

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        # Index -1 is the last row, which is the one for "no upper neighbour".
        return self.best[up, left].long()


def _up(grid: Tensor) -> Tensor:
    return grid.roll(1, dims=1)


def _has_up(grid: Tensor) -> Tensor:
    return (torch.arange(grid.shape[1]) > 0)[None, :, None].expand_as(grid)


def _most_frequent(context: Tensor, token: Tensor, contexts: int, vocab_size: int) -> Tensor:
    """For each context the token seen most often with it, int64 [contexts]; -1 where it was never seen."""
    pairs, counts = (context * vocab_size + token).unique(return_counts=True)
    # By context, and within one by count: the last of each context is its most frequent token.
    order = counts.argsort(stable=True)
    order = order[(pairs[order] // vocab_size).argsort(stable=True)]
    context, token = pairs[order] // vocab_size, pairs[order] % vocab_size
    last = torch.ones_like(context, dtype=torch.bool)
    last[:-1] = context[1:] != context[:-1]
    best = torch.full((contexts,), -1)
    best[context[last]] = token[last]  # one write each: of several, which one stays is not defined
    return best
