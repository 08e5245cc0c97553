"""A tree that grows one drawn node at a time, where it is worth most: DySpec's greedy expansion.

DySpec (Xiong et al. 2024, arXiv 2410.11744, algorithm 1). What an entry's next child is worth is the chance, as far as
the smaller model tells, that the walk comes to it: x drawn with probability R(x) from what is left of the distribution of an
entry worth v makes a child worth v R(x), whose own children are worth that at first, and leaves v (1 - R(x)) for the
next sibling. The next node always goes where most is to be had.

Whether a node is drawn depends on the tokens drawn before it, and on nothing else; then it is drawn from its entry's
distribution without the siblings before it, whatever comes up. So every sibling follows the distribution it is tested with, given all
that decided that it exists, and the recursive residual test is exact. Drawing more and verifying the best is not.
"""

from __future__ import annotations

import numpy as np
import torch

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.runners import build_runner
from mmspec.sampling.rejection import sample
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.tree import Tree, TreeDraft, WithoutReplacement
from mmspec.sampling.tree_rejection import Outcome, verify_tree


class DySpecDrafter:
    """Grows a tree for each row. The model is called when the next node needs a distribution it has not given yet.

    Args:
        runner: The model or head, with the distribution that nodes are drawn from.
        nodes: How many are verified.
        depth: The longest path.
    """

    verify = staticmethod(verify_tree)

    def __init__(self, runner: DraftRunner, nodes: int, depth: int) -> None:
        self._runner = runner
        self._nodes = nodes
        self._depth = depth

    @property
    def calls(self) -> int:
        return self._runner.calls

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        self._runner.observe(verdict, state)

    def select_rows(self, row_ids: list[int]) -> None:
        self._runner.select_rows(row_ids)

    def propose(self, state: BatchState, iteration: int) -> TreeDraft:
        batch = len(state.ids)
        every, row = np.arange(batch), torch.arange(batch, device=state.device)
        nodes = self._nodes
        # As many numbers at each depth as there may be nodes: those of `Tree.uniforms`.
        u = state.rng.uniforms(state.positions(self._depth)[..., None], iteration, np.arange(nodes))[DRAFT]
        worth = np.full((batch, 1 + nodes), -1.0)
        worth[:, 0] = 1.0
        depth = np.zeros((batch, 1 + nodes), dtype=np.int64)
        made = np.zeros((batch, self._depth), dtype=np.int64)  # nodes of each depth so far
        parents = np.zeros((batch, nodes), dtype=np.int64)
        tokens = torch.zeros(batch, nodes, dtype=torch.int64, device=state.device)
        probs = self._runner.root(state)
        left = probs.clone()
        for j in range(nodes):
            entry = worth[:, : 1 + j].argmax(1)
            if (read := probs.shape[1]) <= entry.max():
                shape = Tree(parents[:, :j], state.device)
                new = self._runner.nodes(state, tokens[:, read - 1 : j], shape, read)
                probs, left = torch.cat([probs, new], dim=1), torch.cat([left, new], dim=1)
            below = depth[every, entry]
            place = made[every, below]
            made[every, below] += 1
            at = torch.from_numpy(entry).to(state.device)
            rest = left[row, at]
            # Where nothing is left the draw repeats an earlier one, and counts for nothing.
            x = sample(rest, u[row, torch.from_numpy(below), torch.from_numpy(place)], fallback=probs[row, at])
            share = (rest[row, x] / rest.sum(-1).clamp(min=torch.finfo(rest.dtype).tiny)).double().cpu().numpy()
            left[row, at, x] = 0.0
            value = worth[every, entry]
            worth[every, entry] = value * (1 - share).clip(0)
            worth[:, 1 + j] = np.where(below + 1 < self._depth, value * share, -1.0)
            depth[:, 1 + j], parents[:, j], tokens[:, j] = below + 1, entry, x
        return TreeDraft(Tree(parents, state.device), tokens, WithoutReplacement(probs))


def build(context: DraftingContext) -> DySpecDrafter:
    """The builder of the recipe `tree-sampled`."""
    recipe = context.recipe
    return DySpecDrafter(build_runner(context, recipe.info.runner), recipe.window - 1, int(recipe.knobs["depth"]))
