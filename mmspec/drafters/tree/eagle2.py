"""A tree that grows where a smaller model is sure: the nodes of largest joint draft probability.

EAGLE-2 (Li et al. 2024, arXiv 2406.16858): at each depth the likeliest entries get their likeliest tokens as children,
and of all nodes those with the largest product of probabilities along their path are verified.

Which nodes are verified depends on their tokens here, and that is safe because nothing is drawn: the whole tree is a
function of the committed tokens, so siblings have one-hot distributions and are tested target-only, whatever selected them. Were
the candidates drawn and then selected by their probability, a sibling in the tree would no longer follow the distribution it
was drawn from, and the test against that distribution would be biased.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.runners import build_runner
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree import Chosen, Tree, TreeDraft
from mmspec.sampling.tree_rejection import Outcome, verify_tree


class DynamicTreeDrafter:
    """Grows a tree for each row, one call of the model for each depth.

    Args:
        runner: The model or head, with the distribution that measures how likely a node is.
        nodes: How many are verified.
        depth: The longest path.
        top: Children of an entry, and entries that get children at each depth.
        vocab_size: V.
    """

    verify = staticmethod(verify_tree)

    def __init__(self, runner: DraftRunner, nodes: int, depth: int, top: int, vocab_size: int) -> None:
        self._runner = runner
        self._nodes = nodes
        self._depth = depth
        self._top = min(top, vocab_size)
        # The model's cache has room for as many nodes as the target's.
        self._beams = max(min(top, nodes // max(depth - 1, 1)), 1)
        self._siblings = Chosen(vocab_size)

    @property
    def calls(self) -> int:
        return self._runner.calls

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        self._runner.observe(verdict, state)

    def select_rows(self, row_ids: list[int]) -> None:
        self._runner.select_rows(row_ids)

    def propose(self, state: BatchState, iteration: int) -> TreeDraft:
        batch = len(state.ids)
        chance, token = self._runner.root(state)[:, 0].topk(self._top)
        # Of every candidate: its token, its joint probability, and the candidate it hangs from (0: root, i + 1: i).
        tokens, chances, parents = [token], [chance], [torch.zeros_like(token)]
        # Of the newest candidates: which entry read by the model they hang from. Those read have a tree of their own.
        owner = torch.zeros_like(token)
        read = owner[:, :0]
        start = 0  # the first of the newest candidates
        for _ in range(self._depth - 1):
            best = chance.topk(min(self._beams, chance.shape[1])).indices.sort().values
            first = 1 + read.shape[1]
            read = torch.cat([read, owner.gather(1, best)], dim=1)
            tree = Tree(read.cpu().numpy(), state.device)
            q = self._runner.nodes(state, token.gather(1, best), tree, first)
            parents.append((start + 1 + best).repeat_interleave(self._top, dim=1))
            start += chance.shape[1]
            likely, token = q.topk(self._top)
            # Rounding must not make a child likelier than what it hangs from.
            chance = (chance.gather(1, best)[..., None] * likely.clamp(max=1.0)).flatten(1)
            token = token.flatten(1)
            owner = torch.arange(first, first + best.shape[1], device=state.device).repeat_interleave(self._top)
            owner = owner.expand(batch, -1)
            tokens.append(token)
            chances.append(chance)
        return self._select(torch.cat(tokens, 1), torch.cat(chances, 1), torch.cat(parents, 1))

    def _select(self, tokens: Tensor, chances: Tensor, parents: Tensor) -> TreeDraft:
        """The likeliest candidates, [B, C] each, as a tree."""
        count = min(self._nodes, tokens.shape[1])
        # Stable, so that of equals the one nearer to the root comes first; then in the order they were made.
        chosen = chances.sort(dim=1, descending=True, stable=True).indices[:, :count].sort().values
        entry = torch.zeros(len(tokens), tokens.shape[1] + 1, dtype=torch.int64, device=tokens.device)
        number = torch.arange(1, count + 1, device=tokens.device).expand(len(tokens), -1)
        entry.scatter_(1, chosen + 1, number)
        tree = Tree(entry.gather(1, parents.gather(1, chosen)).cpu().numpy(), tokens.device)
        return TreeDraft(tree, tokens.gather(1, chosen), self._siblings)


def build(context: DraftingContext) -> DynamicTreeDrafter:
    """The builder of the recipes `tree-dynamic` and `eagle-2`."""
    recipe = context.recipe
    runner = build_runner(context, recipe.info.runner, greedy_as_warm=True)
    depth, top = int(recipe.knobs["depth"]), int(recipe.knobs["top"])
    return DynamicTreeDrafter(runner, recipe.window - 1, depth, top, context.target.vocab_size)
