"""Static trees of a draft model or a head (SpecInfer): siblings are sampled with or without replacement.

Without replacement, k siblings are k distinct tokens (recursive rejection sampling of Jeon et al. 2024, arXiv
2402.14160; Sequoia, Chen et al. 2024, arXiv 2402.12374). With replacement and with branches at the root alone, the tree
is k independent drafts (as in SpecTr, Sun et al. 2023, arXiv 2310.15141, whose test is in `mmspec.sampling.k_seq`).
Shape and order are fixed before anything of a tree is sampled, so that each token follows the distribution that it is
tested with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.adaptive_branching import AdaptiveBranching, Branches, Branching, FixedBranching
from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.trees import TreeVerification, verify_tree
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.runner_drafter import RunnerDrafter
from mmspec.drafters.runners import build_runner
from mmspec.knobs import LARGEST, branches
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import sample
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.tree import Independent, Siblings, Tree, TreeDraft, TreeDraws, WithoutReplacement
from mmspec.sampling.tree_rejection import Outcome


@dataclass(frozen=True)
class SiblingSampler:
    """A way to sample siblings, with the test that matches it.

    Attributes:
        draw: Samples children int64 [B, n * k], k per entry, from distributions float32 [B, n, V] with uniform numbers
            [B, n, k].
        siblings: Makes the q of all siblings from the distributions of all entries, for the test.
        verify: The acceptance test.
        distinct: Whether they are sampled without replacement.
    """

    draw: Callable[[Tensor, Tensor], Tensor]
    siblings: Callable[[Tensor], Siblings]
    verify: TreeVerification = verify_tree
    distinct: bool = False


class StaticTreeDrafter(RunnerDrafter):
    """Samples a tree level by level, with one call of the draft model per level.

    Args:
        runner: Provides the draft distributions.
        branching: Chooses the shape of each tree.
        sibling_sampler: Samples the siblings.
        device: Of the tokens.
    """

    def __init__(
        self, runner: DraftRunner, branching: Branching, sibling_sampler: SiblingSampler, device: torch.device
    ) -> None:
        super().__init__(runner)
        self._sampler = sibling_sampler
        self._branching = branching
        self._branch: Branches = ()  # of the latest tree
        self._tree = cache(lambda branch: Tree.branching(branch, device))
        self.verify = sibling_sampler.verify

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        super().observe(verdict, state)
        self._branching.observe(verdict, state, self._branch)

    def propose(self, state: BatchState, iteration: NDArray[np.int64] | int) -> TreeDraft:
        branch = self._branch = self._branching.choose()
        tree = self._tree(branch)
        iteration = np.asarray(iteration)
        needed = self.host_arrays(state, tree.parents.shape[1], iteration)
        draws, arrays = state.tree_draws(tree, iteration, needed)
        self.take_arrays(arrays)
        u, root = draws.of_nodes(DRAFT), self._runner.root(state)
        if not isinstance(root, Tensor):
            return self._sample_by_kernel(state, tree, branch, draws, root)
        probs = [root]
        levels: list[Tensor] = []
        first = 1
        for count in branch:
            if levels:
                probs.append(dense(self._runner.nodes(state, levels[-1], tree, first)))
                first += levels[-1].shape[1]
            size = probs[-1].shape[1] * count
            levels.append(self._sampler.draw(probs[-1], u[:, first - 1 : first - 1 + size].unflatten(1, (-1, count))))
        return TreeDraft(tree, torch.cat(levels, dim=1), self._sampler.siblings(torch.cat(probs, dim=1)), draws)

    def _sample_by_kernel(
        self, state: BatchState, tree: Tree, branch: Branches, draws: TreeDraws, root: Probs
    ) -> TreeDraft:
        """As `propose`, after the call of `root`, with one launch per level."""
        # Imported here: Triton may be missing.
        from mmspec.sampling.lazy_trees import TreeSampler

        sampler = TreeSampler(state.last(), tree, root.shape[-1], draws.of_nodes(DRAFT), self._sampler.distinct)
        level = sampler.sample(root, branch[0])
        for count in branch[1:]:
            first = sampler.count - level.shape[1]
            level = sampler.sample(self._runner.nodes(state, level, tree, first), count)
        siblings = self._sampler.siblings(sampler.probs)
        return TreeDraft(tree, sampler.window[:, 1:], siblings, draws, sampler.window)


def sample_independent(q: Tensor, u: Tensor) -> Tensor:
    """Samples siblings with replacement: every child from q."""
    return torch.stack([sample(q, u[..., i]) for i in range(u.shape[-1])], dim=-1).flatten(1)


def sample_without_replacement(q: Tensor, u: Tensor) -> Tensor:
    """Samples siblings without replacement: every child from q without the earlier ones.

    If every token is a child already, one is repeated, which the test ignores.
    """
    children: list[Tensor] = []
    remaining = q
    for i in range(u.shape[-1]):
        children.append(sample(remaining, u[..., i], fallback=q))
        remaining = remaining.scatter(-1, children[-1][..., None], 0.0)
    return torch.stack(children, dim=-1).flatten(1)


DISTINCT = SiblingSampler(sample_without_replacement, WithoutReplacement, distinct=True)
INDEPENDENT = SiblingSampler(sample_independent, Independent)


def build_without_replacement(context: DraftingContext) -> StaticTreeDrafter:
    """Builds the drafter of the recipes `tree` and of trees from heads, such as `tree-eagle`."""
    return build_static(context, branching_of(context), DISTINCT)


def build_independent(context: DraftingContext) -> StaticTreeDrafter:
    """Builds the drafter of the recipe `tree-chains`."""
    return build_static(context, branching_of(context), INDEPENDENT)


def build_static(context: DraftingContext, branching: Branching, sibling_sampler: SiblingSampler) -> StaticTreeDrafter:
    """A drafter of trees of a static shape, from the draft model or the head of the recipe."""
    runner = build_runner(context, context.recipe.info.runner)
    return StaticTreeDrafter(runner, branching, sibling_sampler, context.target.device)


def branching_of(context: DraftingContext) -> Branching:
    """The shapes of the knob `branch`; with `auto`, runs of the same recipe, batch size and guidance share a policy."""
    recipe, resources = context.recipe, context.resources
    if not recipe.auto_branch:
        return FixedBranching(branches(str(recipe.knobs["branch"])))
    head = resources.heads.get(recipe.info.runner)
    deepest = min(recipe.depth, getattr(head, "count", recipe.depth))
    key = str(recipe), context.batch_size, any(s.guidance_scale != 1 for s in context.samplings)
    policy = resources.adaptive_windows.setdefault(key, AdaptiveBranching(LARGEST - 1, deepest))
    assert isinstance(policy, AdaptiveBranching)
    return policy
