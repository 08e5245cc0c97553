"""Drafts without branches, drawn token by token from the distributions of a reader."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.runners import build_runner
from mmspec.sampling.rejection import Draft, Verdict, sample
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.tree import Tree


class ChainDrafter:
    """Draws a chain; q is the distribution each token was drawn from. It also goes on after drafts of others that stay.

    Args:
        runner: Gives the distributions; it reads drafts that stay in one call, what is drawn one by one.
        device: Of the tokens.
    """

    def __init__(self, runner: DraftRunner, device: torch.device) -> None:
        self._runner = runner
        self._chain = cache(lambda count: Tree.branching([1] * count, device))

    @property
    def calls(self) -> int:
        return self._runner.calls

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        self._runner.observe(verdict, state)

    def select_rows(self, row_ids: list[int]) -> None:
        self._runner.select_rows(row_ids)

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        return self._draw(state, None, np.zeros(len(state.ids), dtype=np.int64), count, draws)

    def extend(self, state: BatchState, draft: Draft, reused: NDArray[np.int64], draws: WindowRNG) -> Draft:
        """See `mmspec.drafters.jacobi.ContinuationDrafter`."""
        return self._draw(state, draft, reused, draft.tokens.shape[1], draws)

    def _draw(
        self, state: BatchState, draft: Draft | None, reused: NDArray[np.int64], count: int, draws: WindowRNG
    ) -> Draft:
        """`count` drafts per row, the first `reused` of which are those of `draft`."""
        chain, u, first = self._chain(count), draws[DRAFT], int(reused.min())
        tokens, probs = list[Tensor](), list[Tensor]()
        q = self._runner.root(state)
        if draft is not None and first:
            tokens, probs = [draft.tokens[:, :first]], [draft.q[:, :first]]
            q = self._runner.nodes(state, tokens[0], chain, 1)[:, -1:]
        for i in range(first, count):
            if i > first:
                q = self._runner.nodes(state, tokens[-1], chain, i)
            x, drawn_from = sample(q, u[:, i : i + 1]), q
            if draft is not None and (stays := reused > i).any():
                # Rows of which more is left: what they have is read like what is drawn.
                stay = torch.from_numpy(stays[:, None]).to(x.device)
                x = torch.where(stay, draft.tokens[:, i : i + 1], x)
                drawn_from = torch.where(stay[..., None], draft.q[:, i : i + 1], q)
            tokens.append(x)
            probs.append(drawn_from)
        return Draft(torch.cat(tokens, dim=1), torch.cat(probs, dim=1))


def build(context: DraftingContext) -> ChainDrafter:
    """The builder of the recipes `eagle` and `medusa`."""
    return ChainDrafter(build_runner(context, context.recipe.info.runner), context.target.device)
