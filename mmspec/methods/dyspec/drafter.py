"""DySpec: a tree that is sampled node by node, the next node always at the entry of highest expected value.

DySpec (Xiong et al. 2024, arXiv 2410.11744, algorithm 1). The value of an entry estimates, by the draft distributions,
the probability that verification reaches its next child. A child x that is sampled with probability R(x) from the
residual of an entry of value v has the value v R(x), and leaves v (1 - R(x)) to the next sibling.

Whether a node exists depends only on the tokens sampled before it. It is then sampled from the distribution of its
entry without the earlier siblings, and is never dropped. Given everything that decided that it exists, every sibling
therefore follows the distribution that it is tested with, and recursive rejection sampling is exact. Sampling more
nodes and verifying the best of them is not.

On a device the same tree is grown with one call of the draft model per depth, whatever the tokens. Let T(d) be the tree
whose nodes of depth d have no children. T(d + 1) chooses among the entries of less depth as T(d) does, since neither
their values nor their order depend on deeper nodes, and among nodes of depth d besides. Its nodes up to depth d are
therefore the first ones of T(d), in the same order, and only children of nodes of depth d are sampled, once the draft
model has read T(d), with the numbers that they have above. The deepest of these trees is the one above, node by node. A
node that is in T(d) and not in T(d + 1) gave way to nodes that were worth more before its token was sampled, so that
its own token decides nothing about it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.trees import verify_tree
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.runner_drafter import RunnerDrafter
from mmspec.drafters.runners import build_runner
from mmspec.drafters.tree.grown import grown_tree
from mmspec.sampling.probs import dense
from mmspec.sampling.rejection import sample
from mmspec.sampling.rng import DRAFT
from mmspec.sampling.tree import Tree, TreeDraft, WithoutReplacement


class DySpecDrafter(RunnerDrafter):
    """Grows a tree for each row; calls the draft model when the next node needs a new distribution.

    Args:
        runner: Provides the draft distributions.
        nodes: The number of nodes.
        depth: The length of the longest path.
    """

    verify = staticmethod(verify_tree)

    def __init__(self, runner: DraftRunner, nodes: int, depth: int) -> None:
        super().__init__(runner)
        self._nodes = nodes
        self._depth = depth

    def propose(self, state: BatchState, iteration: NDArray[np.int64] | int) -> TreeDraft:
        if state.ops.by_kernels:
            return self._propose_by_kernels(state, np.asarray(iteration))
        batch = len(state.ids)
        rows, row = np.arange(batch), torch.arange(batch, device=state.device)
        nodes = self._nodes
        # One number per possible node of each depth, as in `mmspec.sampling.tree.TreeDraws`.
        iteration = np.expand_dims(iteration, -1)
        u = state.rng.uniforms(state.positions(self._depth)[..., None], iteration, np.arange(nodes))[DRAFT]
        value = np.full((batch, 1 + nodes), -1.0)
        value[:, 0] = 1.0
        depth = np.zeros((batch, 1 + nodes), dtype=np.int64)
        counts = np.zeros((batch, self._depth), dtype=np.int64)  # nodes of each depth so far
        parents = np.zeros((batch, nodes), dtype=np.int64)
        tokens = torch.zeros(batch, nodes, dtype=torch.int64, device=state.device)
        probs = dense(self._runner.root(state))
        remaining = probs.clone()  # without the children so far
        for j in range(nodes):
            entry = value[:, : 1 + j].argmax(1)
            if (read := probs.shape[1]) <= entry.max():
                tree = Tree(parents[:, :j], state.device)
                new = dense(self._runner.nodes(state, tokens[:, read - 1 : j], tree, read))
                probs, remaining = torch.cat([probs, new], dim=1), torch.cat([remaining, new], dim=1)
            entry_depth = depth[rows, entry]
            place = counts[rows, entry_depth]
            counts[rows, entry_depth] += 1
            at = torch.from_numpy(entry).to(state.device)
            weights = remaining[row, at]
            # If every token is a child already, one is repeated, which the test ignores.
            x = sample(weights, u[row, torch.from_numpy(entry_depth), torch.from_numpy(place)], fallback=probs[row, at])
            total = weights.sum(-1).clamp(min=torch.finfo(weights.dtype).tiny)
            share = (weights[row, x] / total).cpu().double().numpy()
            remaining[row, at, x] = 0.0
            entry_value = value[rows, entry]
            value[rows, entry] = entry_value * (1 - share).clip(0)
            value[:, 1 + j] = np.where(entry_depth + 1 < self._depth, entry_value * share, -1.0)
            depth[:, 1 + j], parents[:, j], tokens[:, j] = entry_depth + 1, entry, x
        return TreeDraft(Tree(parents, state.device), tokens, WithoutReplacement(probs))

    def _propose_by_kernels(self, state: BatchState, iteration: NDArray[np.int64]) -> TreeDraft:
        """As `propose`, with one call and two launches per depth; the host does not learn the shape of the tree."""
        # Imported here: Triton may be missing.
        from mmspec.kernels.tree_shape import tree_shape
        from mmspec.methods.dyspec.kernel import sample_depth
        from mmspec.sampling.lazy_probs import lazy

        nodes = self._nodes
        height = min(self._depth, nodes)
        needed = self.host_arrays(state, nodes, iteration)
        repeated = np.broadcast_to(iteration, (len(state.ids), nodes))
        draws, (of_nodes, *arrays) = state.window_with(height + 1, iteration, [repeated, *needed])
        self.take_arrays(arrays)
        u, before, last = draws.uniforms(DRAFT, 0, nodes), state.before.on(state.device), state.last()
        grown = sample_depth(lazy(self._runner.root(state)).stats, u[:, 0], last, None, 0)
        for depth in range(1, height):
            # All nodes are read, since their places in the tree before were other ones; no children are needed.
            tree = Tree.on_device(tree_shape(grown.parents, before, depth, 1), None, depth, chain=False)
            q = self._runner.nodes(state, grown.window[:, 1:], tree, 1)
            grown = sample_depth(lazy(q).stats, u[:, depth], last, grown, depth)
        shape = tree_shape(grown.parents, before, height, nodes)
        siblings = WithoutReplacement(grown.probs)
        return grown_tree(state, shape, height, grown.window, siblings, draws, of_nodes)


def build(context: DraftingContext) -> DySpecDrafter:
    """Builds the drafter of the recipe `tree-sampled`."""
    recipe = context.recipe
    return DySpecDrafter(build_runner(context, recipe.info.runner), recipe.window - 1, int(recipe.knobs["depth"]))
