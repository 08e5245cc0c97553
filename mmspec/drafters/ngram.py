"""N-gram tables over the left and the upper neighbor, for vocabularies small enough to list all pairs."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Table(Protocol):
    """An n-gram table: a `mmspec.drafters.token_init.TokenInit`, with several candidates for trees."""

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        """The first candidate; see `mmspec.drafters.token_init.TokenInit`."""
        ...

    def candidates(self, left: Tensor, up: Tensor, count: int) -> Tensor:
        """The `count` best candidates for the token after `left` and below `up`, int64 [..., count].

        They are distinct; if the table has fewer, the first one is repeated.

        Args:
            left: int64 [...].
            up: int64 [...], -1 where there is no upper neighbor.
            count: The number of candidates.
        """
        ...


class NGramTable:
    """The most frequent token for each pair of left and upper neighbor.

    Args:
        best: Integer [V + 1, V]; `best[up, left]`, with row V for "no upper neighbor".
    """

    def __init__(self, best: Tensor) -> None:
        self.best = best

    @staticmethod
    def count(sequences: Tensor, width: int, vocab_size: int) -> NGramTable:
        """Counts a table from token maps int64 [n, N] with `width` tokens per line.

        An unseen pair falls back to the most frequent successor of its left token, and an unseen left token to itself.
        """
        grid = sequences.long().unflatten(1, (-1, width))
        # In the first column the token above replaces the missing left neighbor, as in drafting.
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
        # Index -1 is the last row, which is the one for "no upper neighbor".
        return self.best[up, left].long()

    def on_host(self, left: NDArray[np.int64], up: NDArray[np.int64], u: NDArray[np.float32]) -> NDArray[np.int64]:
        return self.best.numpy()[up, left].astype(np.int64)

    def candidates(self, left: Tensor, up: Tensor, count: int) -> Tensor:
        """The successor of the pair, that of the left token, the upper token, the left token, the upper's successor."""
        upper = torch.where(up >= 0, up, left)
        found = [self.best[up, left], self.best[-1][left], upper, left, self.best[-1][upper]]
        return distinct(torch.stack([token.long() for token in found], dim=-1), count)


def _up(grid: Tensor) -> Tensor:
    return grid.roll(1, dims=1)


def _has_up(grid: Tensor) -> Tensor:
    return (torch.arange(grid.shape[1]) > 0)[None, :, None].expand_as(grid)


def _most_frequent(context: Tensor, token: Tensor, contexts: int, vocab_size: int) -> Tensor:
    """The most frequent token of each context, int64 [contexts]; -1 for an unseen context."""
    seen, tokens = successors(context, token, vocab_size, 1)
    best = torch.full((contexts,), -1)
    best[seen] = tokens[:, 0]
    return best


def successors(context: Tensor, token: Tensor, vocab_size: int, count: int) -> tuple[Tensor, Tensor]:
    """The most frequent tokens after each context.

    Args:
        context: int64 [n].
        token: int64 [n], the token after each context.
        vocab_size: V.
        count: The number of tokens per context.

    Returns:
        The distinct contexts, int64 [P] ascending, and the `count` most frequent tokens of each, int64 [P, count], -1
        if there are fewer. Of equally frequent tokens the highest comes first.
    """
    pairs, counts = (context * vocab_size + token).unique(return_counts=True)
    # Sorted by context, then by descending count.
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


def distinct(found: Tensor, count: int) -> Tensor:
    """The first `count` distinct values of int64 [..., n], without -1; padded with the first one."""
    repeated = (found[..., :, None] == found[..., None, :]).tril(-1).any(-1) | (found < 0)
    found = found.gather(-1, repeated.int().argsort(dim=-1, stable=True))
    found = torch.where(repeated.sort(dim=-1, stable=True).values, found[..., :1], found)
    missing = max(count - found.shape[-1], 0)
    return torch.cat([found, found[..., :1].expand(*found.shape[:-1], missing)], dim=-1)[..., :count]
