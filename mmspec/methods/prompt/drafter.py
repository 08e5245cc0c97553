"""Parallel Prompt Decoding (PPD; Chen et al. 2024, arXiv 2405.18628): the target reads prompt tokens after each node.

A tree has its nodes first and then, after each entry of depth d, m prompt tokens at the depths d + 1 to d + m. The
target's distribution at prompt token i after the last accepted entry is that of the i-th draft in the next tree: it has
read the tokens before it but not those in between. No other model is called. The prompts' keys and values come after
the tree's in the cache, where the next call writes over them.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.adaptive_branching import Branching
from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import PromptTarget
from mmspec.drafters.tree.specinfer import DISTINCT, StaticTreeDrafter, branching_of
from mmspec.errors import ArgumentError, ModelError
from mmspec.methods.prompt.head import PromptTokens
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.probs import Probs
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree import Tree, TreeDraft
from mmspec.sampling.tree_rejection import Outcome, TreeVerdict


class PromptRunner:
    """Drafts from the distributions at the prompt tokens of the last accepted entry: one for each depth.

    The first tree of a row, before which no prompts have been read, is drawn from all tokens alike.

    Args:
        batch_size: B.
        count: Prompt tokens after an entry, m.
        vocab_size: V.
        device: Of the distributions.
    """

    ROWS = ("_q",)

    calls = 0

    def __init__(self, batch_size: int, count: int, vocab_size: int, device: torch.device) -> None:
        self._q: Probs = torch.full((batch_size, count, vocab_size), 1 / vocab_size, device=device)
        self._read: Probs = self._q[:, None]  # [B, entries, m, V], at the prompts of the latest tree

    def read(self, probs: Probs) -> None:
        """Takes the distributions at the prompt tokens of each entry, float32 [B, entries, m, V]."""
        self._read = probs

    def observe(self, verdict: Outcome, state: BatchState) -> None:
        if isinstance(verdict, TreeVerdict):  # a plain step reads no prompts
            last = verdict.last.on(self._read.device)
            self._q = self._read[torch.arange(len(last), device=last.device), last]

    def root(self, state: BatchState) -> Probs:
        return self._q[:, :1]

    def nodes(self, state: BatchState, tokens: Tensor, tree: Tree, first: int) -> Probs:
        return self._q[:, tree.depth[0, first : first + tokens.shape[1]]]


class PromptDrafter:
    """Samples trees from what the target predicts at its prompt tokens, and appends prompt tokens for the next tree.

    Args:
        target: The target, before its prefill.
        prompts: Embeddings of the prompt tokens, [m, D].
        branching: Chooses the shape of each tree, of depth m at most.
        batch_size: B.

    Raises:
        ModelError: If the target's embeddings have another width.
    """

    ROWS = ("_nodes",)

    def __init__(self, target: PromptTarget, prompts: Tensor, branching: Branching, batch_size: int) -> None:
        target.read_prompts(prompts)
        count, device = len(prompts), target.device
        self._runner = PromptRunner(batch_size, count, target.vocab_size, device)
        self._nodes = StaticTreeDrafter(self._runner, branching, DISTINCT, device)
        # By the tree without them.
        self._prompted = cache(lambda t: with_prompts(t.parents, np.arange(1 + t.parents.shape[1]), count, device))
        self._prompts = target.vocab_size + torch.arange(count, device=device)
        self._draft: TreeDraft | None = None  # the nodes without prompts

    @property
    def calls(self) -> int:
        return self._runner.calls

    def propose(self, state: BatchState, iteration: NDArray[np.int64]) -> TreeDraft:
        draft = self._draft = self._nodes.propose(state, iteration)
        prompts = self._prompts.repeat(len(draft.tokens), 1 + draft.tokens.shape[1])
        return TreeDraft(self._prompted(draft.tree), torch.cat([draft.tokens, prompts], dim=1), draft.siblings)

    def verify(
        self, ops: TorchOps, p: Probs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor
    ) -> TreeVerdict:
        """Verifies the nodes; see `mmspec.sampling.tree_rejection.verify_tree`."""
        own = self._draft
        assert own is not None, "a tree is proposed before it is verified"
        count = own.tokens.shape[1]
        self._runner.read(p[:, 1 + count :].unflatten(1, (1 + count, len(self._prompts))))
        numbers = accept_u[:, :count], resample_u[:, : 1 + own.tree.height]
        return ops.verify_tree(p[:, : 1 + count], own, rule, *numbers)

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        self._nodes.observe(verdict, state)


def with_prompts(parents: NDArray[np.int64], entries: NDArray[np.int64], count: int, device: torch.device) -> Tree:
    """A tree with `count` further nodes, one below the other, after each of some entries.

    Args:
        parents: Host int64 [1, n], the parent entry of each node without them; see `mmspec.sampling.tree.Tree`.
        entries: Host int64 [n], the entries.
        count: Prompt tokens after an entry.
        device: Of the result.
    """
    new = parents.shape[1] + np.arange(len(entries) * count).reshape(len(entries), count)
    new[:, 0] = entries
    return Tree(np.concatenate([parents, new.reshape(1, -1)], axis=1), device)


def build(context: DraftingContext) -> PromptDrafter:
    """Builds the drafter of the recipe `prompt`.

    Raises:
        ArgumentError: If the model has no prompt tokens or too few, or its target cannot read them.
        ModelError: If they are for another model.
    """
    recipe, target, prompts = context.recipe, context.target, context.resources.heads.get("prompt")
    if not isinstance(prompts, PromptTokens):
        raise ArgumentError(
            f"recipe '{recipe}' needs prompt tokens, and this model has none; train some with "
            "`mmspec train-drafter --kind prompt` and name their folder as drafter"
        )
    if not isinstance(target, PromptTarget):
        raise ArgumentError(f"recipe '{recipe}' is not possible here: {type(target).__name__} reads no prompt tokens")
    if prompts.vocab_size != target.vocab_size:
        raise ModelError(
            f"drafter has a vocabulary of {prompts.vocab_size} tokens, the model {target.vocab_size}; they must match"
        )
    if recipe.depth > prompts.count and not recipe.auto_branch:
        raise ArgumentError(
            f"recipe '{recipe}' drafts {recipe.depth} tokens ahead, but the drafter has {prompts.count} prompt tokens"
        )
    depth = min(recipe.depth, prompts.count)
    embeddings = prompts.weight[:depth].detach().to(target.device)
    return PromptDrafter(target, embeddings, branching_of(context), context.batch_size)
