"""N-gram tables over the left and the upper neighbor."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Table(Protocol):
    """An n-gram table: a start token, and several guesses for trees."""

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        """As `TokenInit` has it."""
        ...

    def guesses(self, left: Tensor, up: Tensor, count: int) -> Tensor:
        """The first `count` guesses of what follows `left` next to `up` (-1: none), int64 [..., count].

        Different ones first, and repetitions of the first where there are no more.
        """
        ...


class NGramTable:
    """The likeliest token for each pair of left and upper neighbour, for vocabularies small enough to list all pairs.

    Args:
        best: Integer [V + 1, V]; `best[up, left]`, with row V for "no upper neighbour".
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

    def guesses(self, left: Tensor, up: Tensor, count: int) -> Tensor:
        """What the pair is followed by, the left token, the one above, both, and what the one above is followed by."""
        upper = torch.where(up >= 0, up, left)
        several = [self.best[up, left], self.best[-1][left], upper, left, self.best[-1][upper]]
        return different(torch.stack([guess.long() for guess in several], dim=-1), count)


def _up(grid: Tensor) -> Tensor:
    return grid.roll(1, dims=1)


def _has_up(grid: Tensor) -> Tensor:
    return (torch.arange(grid.shape[1]) > 0)[None, :, None].expand_as(grid)


def _most_frequent(context: Tensor, token: Tensor, contexts: int, vocab_size: int) -> Tensor:
    """For each context the token seen most often with it, int64 [contexts]; -1 where it was never seen."""
    seen, tokens = followers(context, token, vocab_size, 1)
    best = torch.full((contexts,), -1)
    best[seen] = tokens[:, 0]
    return best


def followers(context: Tensor, token: Tensor, vocab_size: int, count: int) -> tuple[Tensor, Tensor]:
    """What follows each context most often, of pairs int64 [n].

    Returns:
        The contexts that were seen, int64 [P] ascending, and the `count` tokens seen most often with each, int64 [P,
            count], -1 where there are no more. Of tokens seen equally often the highest comes first.
    """
    pairs, counts = (context * vocab_size + token).unique(return_counts=True)
    # By context, and within one by count from above.
    order = counts.flip(0).argsort(stable=True, descending=True)
    pairs = pairs.flip(0)[order]
    pairs = pairs[(pairs // vocab_size).argsort(stable=True)]
    seen, sizes = (pairs // vocab_size).unique_consecutive(return_counts=True)
    rank = torch.arange(len(pairs)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    best = torch.full((len(seen), count), -1)
    row = torch.arange(len(seen)).repeat_interleave(sizes)
    first = rank < count
    best[row[first], rank[first]] = pairs[first] % vocab_size
    return seen, best


def different(found: Tensor, count: int) -> Tensor:
    """The first `count` different ones of guesses int64 [..., n], -1 being none; the first of all again after them."""
    repeated = (found[..., :, None] == found[..., None, :]).tril(-1).any(-1) | (found < 0)
    found = found.gather(-1, repeated.int().argsort(dim=-1, stable=True))
    found = torch.where(repeated.sort(dim=-1, stable=True).values, found[..., :1], found)
    missing = max(count - found.shape[-1], 0)
    return torch.cat([found, found[..., :1].expand(*found.shape[:-1], missing)], dim=-1)[..., :count]
