"""Sparse n-gram tables, counted from maps and from streams, against a plain count."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from batch_runs import run
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.drafters.sparse_ngram import SparseNGramTable
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.tree import Tree
from mmspec.testing.toys import ToyTarget

V, K = 5, 3


def by_hand(sequences: Tensor, width: int | None) -> tuple[dict[tuple[int, int], list[int]], dict[int, list[int]]]:
    """The successors of each pair (upper, left) and of each token, most frequent first, then highest first."""
    pairs: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    singles: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row in sequences.tolist():
        for n in range(1, len(row)):
            up = row[n - (width or 2)] if n >= (width or 2) else -1
            left = up if width and n % width == 0 else row[n - 1]
            if row[n] < 0 or left < 0:
                continue
            singles[left][row[n]] += 1
            if up >= 0:
                pairs[up, left][row[n]] += 1

    def ranked(counts: Counter[int]) -> list[int]:
        return sorted(counts, key=lambda t: (-counts[t], -t))[:K]

    return {k: ranked(c) for k, c in pairs.items()}, {k: ranked(c) for k, c in singles.items()}


@pytest.mark.parametrize("width", [None, 4])
def test_against_a_plain_count(width: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    sequences = torch.randint(V - 1, (6, 12), generator=generator)  # token 4 is never seen
    if width is None:
        sequences[2, 7:] = -1  # a shorter one
    table = SparseNGramTable.count(sequences, width, V, K)
    pairs, singles = by_hand(sequences, width)
    assert len(table.pairs) == len(pairs) < V * V
    for up in range(-1, V):
        for left in range(V):
            known = [*pairs.get((up, left), []), *singles.get(left, []), up if up >= 0 else left, left]
            expected = list(dict.fromkeys(known))[:K]
            expected += expected[:1] * (K - len(expected))
            assert table.candidates(torch.tensor([left]), torch.tensor([up]), K).tolist() == [expected], (up, left)
            assert table(torch.tensor([left]), torch.tensor([up]), torch.zeros(1)).tolist() == expected[:1]


def test_unseen_contexts_repeat_their_neighbors() -> None:
    table = SparseNGramTable.count(torch.tensor([[3]]), None, V)
    assert table.candidates(torch.tensor([[2, 1]]), torch.tensor([[0, -1]]), 3).tolist() == [[[0, 2, 0], [1, 1, 1]]]


class FixedStream(ToyTarget):
    """A target whose stream is known in advance and does not depend on the drafts."""

    def __init__(self, known: list[int]) -> None:
        super().__init__(1, V, 3, 0)
        self._likely = torch.nn.functional.one_hot(torch.tensor(known), V) * 100.0

    def prefill(self) -> Logits:
        return Logits(self._likely[None, :1], None)

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        return Logits(self._likely[at[:, None] + 1 + np.arange(tokens.shape[1])], None)

    def forward_tree(
        self, tokens: Tensor, at: NDArray[np.int64], tree: Tree, first: int = 0, early_exit: EarlyExit | None = None
    ) -> Logits:
        return Logits(self._likely[at[:, None] + 1 + tree.depth], None)

    def settle(self, at: NDArray[np.int64], path: NDArray[np.int64]) -> None:
        """Does nothing: the target has no cache."""


@pytest.mark.parametrize("recipe", ["table:window=4", "scd:window=4", "tree-table:branch=2/2/1", "recycle:window=4"])
def test_streams_are_drafted_from_two_tokens(recipe: str) -> None:
    """In this stream two tokens determine the next one, so that whole windows are accepted."""
    known, length = [0, 0], 40
    while len(known) < 200:
        known.append((known[-2] * 2 + known[-1] + 1) % V)
    table = SparseNGramTable.count(torch.tensor([known]), None, V)

    out = run(
        FixedStream(known), parse(recipe), Layout(length), [SamplingParams(temperature=0)], [0], DraftResources(table)
    )
    assert out.tokens.tolist() == [known[:length]]
    if recipe.startswith("recycle"):
        assert out.stats.tokens_per_call > 1.3  # each pair of neighbors has to occur once
    else:
        # The first window has one neighbor only.
        assert out.stats.target_calls <= 2 + -(-length // (3 + ("tree" not in recipe))) + 1
