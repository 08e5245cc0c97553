"""Drafts that branch: the shape of a tree, how its siblings were drawn, and what a model must do to read one.

A window with a tree holds 1 + m entries. Entry 0 is the last committed token, the root; entry j is node j, and hangs
from an entry before it. An entry's depth is its distance from the root, and its position that of the root plus the
depth, so that siblings stand for the same position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState


class Tree:
    """The shape of a tree of m nodes, the same in all rows (R = 1) or in each row its own (R = B).

    Args:
        parents: Host int64 [R, m]: the entry each node hangs from, which must lie before it.
        device: Where the tensors are wanted.

    Attributes:
        depth: Host int64 [R, 1 + m].
        height: The largest.
        place: Host int64 [R, 1 + m], how many entries of its depth lie before each.
        sees: bool [R, 1 + m, 1 + m], whether an entry (axis 1) is another (axis 2) or hangs below it.
        children: int64 [R, 1 + m, K], the entries that hang from each in order; 0 where there are no more.
        chain: Whether no entry of any row has two children.
        widest: For each depth below `height`, the most children that an entry of it has in any row.
    """

    def __init__(self, parents: NDArray[np.int64], device: torch.device) -> None:
        rows, m = parents.shape
        every = np.arange(rows)
        depth = np.zeros((rows, 1 + m), dtype=np.int64)
        sees = np.zeros((rows, 1 + m, 1 + m), dtype=bool)
        sees[:, 0, 0] = True
        for j in range(1, 1 + m):
            parent = parents[:, j - 1]
            depth[:, j] = depth[every, parent] + 1
            sees[:, j] = sees[every, parent]
            sees[:, j, j] = True
        rank = _earlier_equals(parents)
        children = np.zeros((rows, 1 + m, int(rank.max()) + 1), dtype=np.int64)
        children[every[:, None], parents, rank] = np.arange(1, 1 + m)
        counts = (children > 0).sum(-1)
        self.parents = parents
        self.depth = depth
        self.place = _earlier_equals(depth)
        self.height = int(depth.max())
        self.chain = bool((parents == np.arange(m)).all())
        self.widest = [int(counts[depth == d].max()) for d in range(self.height)]
        self.sees = torch.from_numpy(sees).to(device)
        self.children = torch.from_numpy(children).to(device)

    @staticmethod
    def branching(siblings: Sequence[int], device: torch.device) -> Tree:
        """The tree in which every entry of depth d has `siblings[d]` children; nodes go level by level."""
        parents, level = [], np.zeros(1, dtype=np.int64)
        for count in siblings:
            parents.append(level.repeat(count))
            level = level[-1] + 1 + np.arange(len(level) * count)
        return Tree(np.concatenate(parents)[None], device)

    def uniforms(self, state: BatchState, iteration: int) -> list[Tensor]:
        """The random numbers of the nodes, a float32 [B, m] tensor per stream; `state` stand where the window begins.

        The first node of each depth has those that a draft at its position has in a window without branches.
        """
        positions = state.length[:, None] - 1 + self.depth[:, 1:]
        return state.rng.uniforms(positions, iteration, self.place[:, 1:])


def _earlier_equals(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the values before each, int64 [R, n], are equal to it."""
    return np.tril(values[:, :, None] == values[:, None, :], -1).sum(-1)


class Siblings(Protocol):
    """How the children of an entry were drawn."""

    def conditional(self, entry: Tensor, tokens: Tensor) -> Tensor:
        """The distribution a sibling was drawn from given the ones before it, float32 [B, V]; without mass where it is none.

        Args:
            entry: int64 [B], whose children they are.
            tokens: int64 [B, i + 1], the siblings up to this one, which is the last.
        """
        ...


class WithoutReplacement:
    """Each sibling was drawn from the entry's distribution without the siblings before it.

    Args:
        probs: float32 [B, n, V], of the children of the first n entries; later entries have none.
    """

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs

    def conditional(self, entry: Tensor, tokens: Tensor) -> Tensor:
        rows = torch.arange(len(entry), device=entry.device)
        q = self.probs[rows, entry.clamp(max=self.probs.shape[1] - 1)]
        if tokens.shape[1] == 1:
            return q
        q = q.scatter(1, tokens[:, :-1], 0.0)
        return q / q.sum(-1, keepdim=True).clamp_(min=torch.finfo(q.dtype).tiny)


class Independent:
    """Each sibling was drawn from the entry's distribution, whatever the siblings before it are; it may repeat one.

    Args:
        probs: float32 [B, n, V], of the children of the first n entries; later entries have none.
    """

    def __init__(self, probs: Tensor) -> None:
        self.probs = probs

    def conditional(self, entry: Tensor, tokens: Tensor) -> Tensor:
        rows = torch.arange(len(entry), device=entry.device)
        return self.probs[rows, entry.clamp(max=self.probs.shape[1] - 1)]


class Chosen:
    """Siblings are a function of what lies before them, as the likeliest tokens are: each distribution is one-hot.

    A sibling that repeats an earlier one is none.

    Args:
        vocab_size: V.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def conditional(self, entry: Tensor, tokens: Tensor) -> Tensor:
        x = tokens[:, -1:]
        new = (tokens[:, :-1] != x).all(-1, keepdim=True)
        return torch.zeros(len(x), self._vocab_size, device=x.device).scatter_(1, x, new.float())


@dataclass
class TreeDraft:
    """Proposed tokens that branch, and where they came from.

    Attributes:
        tree: Their shape.
        tokens: int64 [B, m], of the nodes.
        siblings: How they were drawn.
    """

    tree: Tree
    tokens: Tensor
    siblings: Siblings
