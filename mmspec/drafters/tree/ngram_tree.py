"""A tree whose siblings are the candidates of an n-gram table.

Siblings are chosen, not sampled, so that they have one-hot q: a sibling x is accepted with its target probability.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from math import prod
from operator import mul

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.adaptive_branching import Branches, Branching
from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.trees import verify_tree
from mmspec.drafters.ngram import NGramTable, Table
from mmspec.drafters.tree.specinfer import branching_of
from mmspec.drafters.window_kernel import ForcedOnDevice
from mmspec.errors import ArgumentError
from mmspec.sampling.numbers import on_device
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree import Chosen, Tree, TreeDraft
from mmspec.sampling.tree_rejection import Outcome


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
        self._plan = cache(lambda branch, line: tree_plan(self._tree(branch), branch, line, device))
        self._forced = ForcedOnDevice()
        # The table in the form of the kernel, where it has one.
        small = isinstance(table, NGramTable) and table.best.shape[1] == vocab_size
        self._best = table.best.contiguous() if small and isinstance(table, NGramTable) else None

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        self._branching.observe(verdict, state, self._branch)

    def propose(self, state: BatchState, iteration: NDArray[np.int64] | int) -> TreeDraft:
        width, constraint = state.layout.width, state.layout.constraint
        branch = self._branch = self._branching.choose()
        if self._best is not None and state.ops.by_kernels:
            return self._draft_by_kernel(state, branch, self._best, iteration)
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
                line_start = on_device(position % width == 0, up.device)[:, None]
                left = torch.where(line_start & (up >= 0), up, left)
            found = self._table.candidates(left, up, count).flatten(1)
            if constraint is not None:
                forced = constraint.forced[position.clip(max=len(constraint.forced) - 1)]
                must = on_device(forced, found.device)[:, None]
                found = torch.where(must >= 0, must, found)
            levels.append(found)
        return TreeDraft(self._tree(branch), torch.cat(levels[1:], dim=1), self._siblings)

    def _draft_by_kernel(
        self, state: BatchState, branch: Branches, best: Tensor, iteration: NDArray[np.int64] | int
    ) -> TreeDraft:
        """As `propose`, in one launch."""
        # Imported here: Triton may be missing.
        from mmspec.kernels.draft_tree import draft_tree

        tree, line = self._tree(branch), state.layout.width or 0
        draws, _ = state.tree_draws(tree, np.asarray(iteration))
        positions = draws.draws.positions.on(state.device)
        plan, levels = self._plan(branch, line)
        window = draft_tree(*state.storage(), positions, best, self._forced(state), plan, levels, line)
        return TreeDraft(tree, window[:, 1:], self._siblings, draws, window)


def tree_plan(tree: Tree, branch: Branches, line: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """What `mmspec.kernels.draft_tree.draft_tree` has to know of a static tree, on the device.

    Args:
        tree: `Tree.branching(branch)`.
        branch: The number of children of an entry at each depth.
        line: Tokens per line; 0 for a stream.
        device: Of the result.

    Returns:
        Its `plan` and `levels`.
    """
    parents, distance = tree.parents[0], line or 2
    first = np.array([0, *accumulate(accumulate(branch, mul))])
    plan = np.zeros((3, len(parents)), dtype=np.int64)
    for node, (parent, depth) in enumerate(zip(parents, tree.depth[0, 1:], strict=True)):
        upper = node + 1 if depth >= distance else -1
        for _ in range(distance if upper >= 0 else 0):
            upper = parents[upper - 1]
        plan[:, node] = parent, (node - first[depth - 1]) % branch[depth - 1], upper
    return on_device(plan, device), on_device(first, device)


def build(context: DraftingContext) -> NGramTreeDrafter:
    """Builds the drafter of the recipe `tree-table`."""
    recipe, target, table = context.recipe, context.target, context.resources.table
    if table is None:
        raise ArgumentError(f"recipe '{recipe}' needs an n-gram table, and this model has none")
    return NGramTreeDrafter(table, branching_of(context), target.vocab_size, target.device)
