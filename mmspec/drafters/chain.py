"""A chain of drafts, sampled token by token from a draft model or a draft head."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_runner import BlockwiseRunner, DraftRunner
from mmspec.drafters.runner_drafter import RunnerDrafter
from mmspec.drafters.runners import build_runner
from mmspec.sampling.numbers import Numbers, on_device
from mmspec.sampling.probs import Probs, dense
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import DRAFT, WindowRNG
from mmspec.sampling.tree import Tree


class ChainDrafter(RunnerDrafter):
    """Samples a chain of drafts. Also a `mmspec.decoding.drafter.ContinuationDrafter`, which continues reused drafts.

    Args:
        runner: Provides the draft distributions. Drafts that are reused in every row are read in one call.
        device: Of the tokens.
    """

    def __init__(self, runner: DraftRunner, device: torch.device) -> None:
        super().__init__(runner)
        self._chain = cache(lambda count: Tree.branching([1] * count, device))

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        tokens, q = self._sample(state, None, Numbers(np.zeros(len(state.ids), dtype=np.int64)), count, draws)
        window = torch.cat([state.last(), *tokens], dim=1)
        return Draft(window[:, 1:], q, window)

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        tokens, q = self._sample(state, draft, reused, draft.tokens.shape[1], draws)
        return Draft(torch.cat(tokens, dim=1), q)

    def _sample(
        self, state: BatchState, draft: Draft | None, reused: Numbers, count: int, draws: WindowRNG
    ) -> tuple[list[Tensor], Probs]:
        """`count` drafts per row, in parts int64 [B, n], and their q; the first `reused` [B] are those of `draft`."""
        chain, u, first = self._chain(count), draws[DRAFT], int(reused.host.min())
        tokens, probs = list[Tensor](), list[Probs]()
        if isinstance(self._runner, BlockwiseRunner):
            known = state.last().expand(-1, count) if draft is None else draft.tokens
            self._runner.reveal(known, reused)
        q = self._runner.root(state)
        if draft is not None and first:
            tokens, probs = [draft.tokens[:, :first]], [draft.q[:, :first]]
            q = self._runner.nodes(state, tokens[0], chain, 1)[:, -1:]
        for i in range(first, count):
            if i > first:
                q = self._runner.nodes(state, tokens[-1], chain, i)
            x, x_probs = state.ops.sample_draft(q, u[:, i : i + 1]), q
            if draft is not None and (is_reused := reused.host > i).any():
                # Rows that reuse more drafts than others: the runner reads these like sampled ones.
                keep = on_device(is_reused[:, None], x.device)
                x = torch.where(keep, draft.tokens[:, i : i + 1], x)
                x_probs = torch.where(keep[..., None], dense(draft.q[:, i : i + 1]), dense(q))
            tokens.append(x)
            probs.append(x_probs)
        return tokens, state.ops.cat(probs)


def build(context: DraftingContext) -> ChainDrafter:
    """The builder of recipes whose window is a chain from a head: `eagle`, `medusa`, `block` and others."""
    return ChainDrafter(build_runner(context, context.recipe.info.runner), context.target.device)
