"""A tree whose siblings are the candidates of an n-gram table.

Siblings are chosen, not sampled, so that they have one-hot q: a sibling x is accepted with its target probability.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.decoding.adaptive_branching import Branches, Branching
from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.ngram import Table
from mmspec.drafters.tree.specinfer import branching_of
from mmspec.errors import ArgumentError
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree import Chosen, Tree, TreeDraft
from mmspec.sampling.tree_rejection import Outcome, verify_tree


class NGramTreeDrafter:
    """Grows a tree from the left and the upper neighbors, without a model.

    Args:
        table: The n-gram table.
        branching: Chooses the shape of each tree.
        vocab_size: V.
        device: Of the tokens.
    """

    calls = 0

    verify = staticmethod(verify_tree)

    def __init__(self, table: Table, branching: Branching, vocab_size: int, device: torch.device) -> None:
        self._table = table
        self._branching = branching
        self._branch: Branches = ()  # of the latest tree
        self._tree = cache(lambda branch: Tree.branching(branch, device))
        self._siblings = Chosen(vocab_size)

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        self._branching.observe(verdict, state, self._branch)

    def select_rows(self, row_ids: list[int]) -> None:
        pass

    def join(self, other: NGramTreeDrafter, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """Does nothing: the tree is a function of the committed tokens."""

    def propose(self, state: BatchState, iteration: NDArray[np.int64] | int) -> TreeDraft:
        width, constraint = state.layout.width, state.layout.constraint
        branch = self._branch = self._branching.choose()
        positions = state.positions(len(branch))
        before, last = state.last(2).split(1, dim=1)
        above = state.at(positions - width) if width else before
        levels = [last]
        for depth, count in enumerate(branch):
            left, position = levels[-1], positions[:, depth]
            distance = width or 2  # in a stream the upper neighbor is the token before the left one
            if depth + 1 >= distance:
                # The upper neighbor is in the tree.
                first = depth + 1 - distance
                up = levels[first].repeat_interleave(prod(branch[first:depth]), dim=1)
            else:
                up = above[:, depth : depth + 1].expand_as(left)
            if width and (position % width == 0).any():
                # The first token of a line has no left neighbor; the token above replaces it.
                line_start = torch.from_numpy(position % width == 0).to(up.device)[:, None]
                left = torch.where(line_start & (up >= 0), up, left)
            found = self._table.candidates(left, up, count).flatten(1)
            if constraint is not None:
                forced = torch.from_numpy(constraint.forced[position.clip(max=len(constraint.forced) - 1)])
                must = forced.to(found.device)[:, None]
                found = torch.where(must >= 0, must, found)
            levels.append(found)
        return TreeDraft(self._tree(branch), torch.cat(levels[1:], dim=1), self._siblings)


def build(context: DraftingContext) -> NGramTreeDrafter:
    """Builds the drafter of the recipe `tree-table`."""
    recipe, target, table = context.recipe, context.target, context.resources.table
    if table is None:
        raise ArgumentError(f"recipe '{recipe}' needs an n-gram table, and this model has none")
    return NGramTreeDrafter(table, branching_of(context), target.vocab_size, target.device)
