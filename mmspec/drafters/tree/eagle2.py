"""EAGLE-2 dynamic trees: the nodes of largest joint draft probability.

EAGLE-2 (Li et al. 2024, arXiv 2406.16858): at each depth the most likely entries get their most likely tokens as
children. Of all these nodes, those with the largest product of probabilities along their path are verified.

Selecting nodes by their tokens is exact here because nothing is sampled: the tree is a function of the committed
tokens, so that siblings have one-hot q and a sibling x is accepted with its target probability. If the nodes were
sampled and then selected by their probability, a sibling would no longer follow the distribution that it was sampled
from, and a test against that distribution would be biased.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.trees import verify_tree
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.runner_drafter import RunnerDrafter
from mmspec.drafters.runners import build_runner
from mmspec.drafters.tree.grown import grown_tree
from mmspec.sampling.likeliest import likeliest
from mmspec.sampling.probs import dense
from mmspec.sampling.tree import Chosen, Tree, TreeDraft


class DynamicTreeDrafter(RunnerDrafter):
    """Grows a tree for each row, with one call of the draft model per depth.

    Args:
        runner: Provides the draft distributions by which nodes are ranked.
        nodes: The number of nodes to verify.
        depth: The length of the longest path.
        top: The number of children of an entry, and of entries that get children at each depth.
        vocab_size: V.
    """

    verify = staticmethod(verify_tree)

    def __init__(self, runner: DraftRunner, nodes: int, depth: int, top: int, vocab_size: int) -> None:
        super().__init__(runner)
        self._nodes = nodes
        self._depth = depth
        self._top = min(top, vocab_size)
        # The KV cache of the draft model has room for no more nodes than that of the target.
        self._beams = max(min(top, nodes // max(depth - 1, 1)), 1)
        self._siblings = Chosen(vocab_size)

    def propose(self, state: BatchState, iteration: NDArray[np.int64] | int) -> TreeDraft:
        if state.ops.by_kernels:
            return self._propose_by_kernels(state, np.asarray(iteration))
        batch = len(state.ids)
        token, joint = likeliest(dense(self._runner.root(state))[:, 0], self._top)
        # By candidate node: its token, its joint probability, and its parent candidate (0: the root, i + 1: candidate
        # i).
        tokens, joints, parents = [token], [joint], [torch.zeros_like(token)]
        # The draft model reads the expanded candidates only; they form a tree of their own. `read` [B, n] holds the
        # parents in that tree, `owner` the entry of that tree that each of the newest candidates is a child of.
        owner = torch.zeros_like(token)
        read = owner[:, :0]
        start = 0  # the first of the newest candidates
        for _ in range(self._depth - 1):
            best = likeliest(joint, min(self._beams, joint.shape[1]))[0].sort().values
            first = 1 + read.shape[1]
            read = torch.cat([read, owner.gather(1, best)], dim=1)
            tree = Tree(read.cpu().numpy(), state.device)
            q = dense(self._runner.nodes(state, token.gather(1, best), tree, first))
            parents.append((start + 1 + best).repeat_interleave(self._top, dim=1))
            start += joint.shape[1]
            token, probs = likeliest(q, self._top)
            # Rounding must not make a child more likely than its parent.
            joint = (joint.gather(1, best)[..., None] * probs.clamp(max=1.0)).flatten(1)
            token = token.flatten(1)
            owner = torch.arange(first, first + best.shape[1], device=state.device).repeat_interleave(self._top)
            owner = owner.expand(batch, -1)
            tokens.append(token)
            joints.append(joint)
        return self._select(torch.cat(tokens, 1), torch.cat(joints, 1), torch.cat(parents, 1))

    def _propose_by_kernels(self, state: BatchState, iteration: NDArray[np.int64]) -> TreeDraft:
        """As `propose`, with two launches per level besides its call; the host does not learn the shape of the tree."""
        # Imported here: Triton may be missing.
        from mmspec.kernels import likeliest as likeliest_kernel
        from mmspec.kernels.grow_tree import Beams, Candidates, choose_nodes, grow_level
        from mmspec.kernels.tree_shape import tree_shape
        from mmspec.sampling.lazy_probs import lazy

        batch, top, levels = len(state.ids), self._top, self._depth - 1
        sizes = [top]  # candidates of each level
        for _ in range(levels):
            sizes.append(min(self._beams, sizes[-1]) * top)
        total = sum(sizes)
        count = min(self._nodes, total)
        height = min(self._depth, count)
        needed = self.host_arrays(state, count, iteration)
        repeated = np.broadcast_to(iteration, (batch, count))
        draws, (of_nodes, *arrays) = state.window_with(height + 1, iteration, [repeated, *needed])
        self.take_arrays(arrays)
        before, q = state.before.on(state.device), self._runner.root(state)
        candidates = Candidates(
            before.new_empty(batch, total),
            torch.empty(batch, total, device=state.device),
            before.new_empty(batch, total),
        )
        beams: Beams | None = None
        read, depth = before[:, None][:, :0], [0]
        start = previous = first = 0
        for level, size in enumerate(sizes):
            tokens, probs = likeliest_kernel.likeliest(lazy(q).stats, top)
            width = min(self._beams, size) if level < levels else 0
            beams = grow_level(tokens, probs, beams, candidates, start, previous, first, width)
            if not width:
                break
            # The draft model reads the candidates that get children only; they form a tree of their own.
            first = 1 + read.shape[1]
            read = torch.cat([read, beams.owners], dim=1) if level else beams.owners
            depth += [level + 1] * width
            shape = tree_shape(read, before, level + 1, max(self._top, self._beams))
            tree = Tree.on_device(shape, np.array([depth]), level + 1, chain=self._beams == 1)
            q = self._runner.nodes(state, beams.tokens, tree, first)
            previous, start = start, start + size
        window, parents = choose_nodes(candidates, state.last(), count)
        shape = tree_shape(parents, before, height, top)
        return grown_tree(state, shape, height, window, self._siblings, draws, of_nodes)

    def _select(self, tokens: Tensor, joints: Tensor, parents: Tensor) -> TreeDraft:
        """The tree of the most likely candidates: tokens, joint probabilities, parents (0 the root), [B, C]."""
        count = min(self._nodes, tokens.shape[1])
        # A stable sort, so that of equally likely candidates a parent comes before its child. Then in candidate order.
        chosen = joints.sort(dim=1, descending=True, stable=True).indices[:, :count].sort().values
        entry = torch.zeros(len(tokens), tokens.shape[1] + 1, dtype=torch.int64, device=tokens.device)
        number = torch.arange(1, count + 1, device=tokens.device).expand(len(tokens), -1)
        entry.scatter_(1, chosen + 1, number)
        tree = Tree(entry.gather(1, parents.gather(1, chosen)).cpu().numpy(), tokens.device)
        return TreeDraft(tree, tokens.gather(1, chosen), self._siblings)


def build(context: DraftingContext) -> DynamicTreeDrafter:
    """Builds the drafter of the recipes `tree-dynamic` and `eagle-2`."""
    recipe = context.recipe
    runner = build_runner(context, recipe.info.runner, greedy_as_warm=True)
    depth, top = int(recipe.knobs["depth"]), int(recipe.knobs["top"])
    return DynamicTreeDrafter(runner, recipe.window - 1, depth, top, context.target.vocab_size)
