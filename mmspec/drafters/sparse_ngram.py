"""A sparse n-gram table with several successors of each context, for vocabularies of any size.

Prompt lookup (Saxena 2023) and n-gram drafting (Ou et al. 2024, arXiv 2404.08698) with tables that are counted in
advance: over the two neighbors of a position, or over the left one alone if the pair was not seen. A candidate has a
one-hot q and is accepted with probability p(x), siblings one after the other, so that decoding is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.drafters.ngram import distinct, successors


class SparseNGramTable:
    """The most frequent successors of each pair of neighbors, and of each token.

    Args:
        pairs: int64 [P] ascending, `up * V + left` of each pair that was seen.
        after_pair: Integer [P, K], the successors of each pair, most frequent first; -1 if there are fewer than K.
        after_left: Integer [V, K], the successors of each token.
    """

    def __init__(self, pairs: Tensor, after_pair: Tensor, after_left: Tensor) -> None:
        self.pairs = pairs
        self.after_pair = after_pair
        self.after_left = after_left

    @staticmethod
    def count(sequences: Tensor, width: int | None, vocab_size: int, most: int = 4) -> SparseNGramTable:
        """Counts a table.

        Args:
            sequences: int64 [n, N]; negative values, such as padding, are not counted.
            width: Tokens per line of a map, a divisor of N; None for streams, where the neighbors of a position are the
                two tokens before it.
            vocab_size: V.
            most: K, the number of successors to keep.
        """
        tokens = sequences.long()
        left, up = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
        left[:, 1:] = tokens[:, :-1]
        distance = width or 2
        up[:, distance:] = tokens[:, :-distance]
        if width:
            # In the first column the token above replaces the missing left neighbor, as in drafting.
            left[:, ::width] = up[:, ::width]
        after_left = torch.full((vocab_size, most), -1, dtype=torch.int32)
        seen = (tokens >= 0) & (left >= 0)
        context, best = successors(left[seen], tokens[seen], vocab_size, most)
        after_left[context] = best.int()
        seen &= up >= 0
        pairs, after_pair = successors((up * vocab_size + left)[seen], tokens[seen], vocab_size, most)
        return SparseNGramTable(pairs, after_pair.int(), after_left)

    def to(self, device: torch.device) -> SparseNGramTable:
        """The same table on a device."""
        return SparseNGramTable(self.pairs.to(device), self.after_pair.to(device), self.after_left.to(device))

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        return self.candidates(left, up, 1)[..., 0]

    def candidates(self, left: Tensor, up: Tensor, count: int) -> Tensor:
        """The successors of the pair, those of the left token, the upper token, the left token."""
        found = [self.after_left[left].long(), torch.where(up >= 0, up, left)[..., None], left[..., None]]
        if len(self.pairs):
            pair = up * len(self.after_left) + left
            index = torch.searchsorted(self.pairs, pair).clamp_(max=len(self.pairs) - 1)
            known = (self.pairs[index] == pair) & (up >= 0)
            found.insert(0, torch.where(known[..., None], self.after_pair[index].long(), -1))
        return distinct(torch.cat(found, dim=-1), count)
