"""An n-gram table with several followers of each context, of any vocabulary: it holds what was seen, nothing else.

Prompt lookup (Saxena 2023) and its n-gram kin (Ou et al. 2024, arXiv 2404.08698) over tables counted beforehand: by the
two neighbours of a position, else by the nearer one alone. A guess is tested with p(x), and siblings one by one,
target-only, so that it is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.drafters.ngram import different, followers


class SparseNGramTable:
    """The tokens seen most often next to a pair of neighbours, and those seen most often after a token.

    Args:
        pairs: int64 [P] ascending, `up * V + left` of each pair that was seen.
        after_pair: int [P, K], what follows it; -1 where there are no more.
        after_left: int [V, K], what follows a token.
    """

    def __init__(self, pairs: Tensor, after_pair: Tensor, after_left: Tensor) -> None:
        self.pairs = pairs
        self.after_pair = after_pair
        self.after_left = after_left

    @staticmethod
    def count(sequences: Tensor, width: int | None, vocab_size: int, several: int = 4) -> SparseNGramTable:
        """Counts a table.

        Args:
            sequences: int64 [n, N]; what is below 0 is not counted, such as padding after short ones.
            width: Tokens per line of a map, of which N is a multiple; None for streams, where the neighbours of a
                position are the two tokens before it.
            several: K, how many followers are kept.
        """
        tokens = sequences.long()
        left, up = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
        left[:, 1:] = tokens[:, :-1]
        distance = width or 2
        up[:, distance:] = tokens[:, :-distance]
        if width:
            # In the first column the token above stands in for the missing one to the left, as in drafting.
            left[:, ::width] = up[:, ::width]
        after_left = torch.full((vocab_size, several), -1, dtype=torch.int32)
        seen = (tokens >= 0) & (left >= 0)
        context, best = followers(left[seen], tokens[seen], vocab_size, several)
        after_left[context] = best.int()
        seen &= up >= 0
        pairs, after_pair = followers((up * vocab_size + left)[seen], tokens[seen], vocab_size, several)
        return SparseNGramTable(pairs, after_pair.int(), after_left)

    def to(self, device: torch.device) -> SparseNGramTable:
        """The same table on a device."""
        return SparseNGramTable(self.pairs.to(device), self.after_pair.to(device), self.after_left.to(device))

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        return self.guesses(left, up, 1)[..., 0]

    def guesses(self, left: Tensor, up: Tensor, count: int) -> Tensor:
        """What follows the pair, what follows the left token, the token above, the one before."""
        several = [self.after_left[left].long(), torch.where(up >= 0, up, left)[..., None], left[..., None]]
        if len(self.pairs):
            pair = up * len(self.after_left) + left
            index = torch.searchsorted(self.pairs, pair).clamp_(max=len(self.pairs) - 1)
            known = (self.pairs[index] == pair) & (up >= 0)
            several.insert(0, torch.where(known[..., None], self.after_pair[index].long(), -1))
        return different(torch.cat(several, dim=-1), count)
