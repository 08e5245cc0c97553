"""The loop for drafts that branch; `mmspec.decoding.loop.decode` is the one for windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.loop import OnStep, drop_finished
from mmspec.decoding.stats import Meter
from mmspec.decoding.target import TreeTarget, bind_features
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import ACCEPT, RESAMPLE
from mmspec.sampling.sampler import TokenSampler
from mmspec.sampling.tree import TreeDraft
from mmspec.sampling.tree_rejection import TreeVerdict, verify_tree

TreeTest = Callable[[Tensor, TreeDraft, Accept, Tensor, Tensor], TreeVerdict]


class TreeDrafter(Protocol):
    """Proposes trees; knows neither the target nor the rule."""

    @property
    def calls(self) -> int:
        """Calls of a model of its own."""
        ...

    def propose(self, state: BatchState, iteration: int) -> TreeDraft:
        """Drafts what may follow the last token of each row, of which there is at least one.

        Random numbers are those of `rows.rng` in this `iteration`, of the stream DRAFT.
        """
        ...

    def observe(self, verdict: TreeVerdict, state: BatchState) -> None:
        """Learns what became of the draft; `state` still stand where the window began."""
        ...

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        ...


def decode_tree(
    target: TreeTarget,
    drafter: TreeDrafter,
    rule: Accept,
    sampler: TokenSampler,
    state: BatchState,
    meter: Meter,
    on_step: OnStep | None,
    test: TreeTest = verify_tree,
) -> None:
    """Draft a tree and verify it in one target call, until every row is done.

    Entries after the end of a row are read and ignored: were trees cut there, a row would depend on its mates.

    Args:
        target: Knows nothing of the other three.
        drafter: Knows nothing of the other three.
        rule: Knows nothing of the other three.
        sampler: Knows nothing of the other three.
        state: The batch; holds the result afterwards.
        meter: Counts calls, tokens and seconds.
        on_step: Called after every target call. What it raises leaves the loop.
        test: How siblings are tested.
    """
    meter.clock.lap("other")
    logits = target.prefill()
    meter.clock.lap("target")
    start = state.positions(1)
    nothing = Draft(torch.empty(0), torch.empty(0))
    first = sampler.verify(sampler(logits, start), nothing, rule, state.rng.window(start, 0))
    meter.clock.lap("rule")
    gained = state.commit(first.tokens, first.accepted)
    meter.count(first, gained, state.ids)
    while True:
        if on_step is not None:
            on_step(state.step(meter.nfe))
        running = state.running()
        if not running:
            return
        if len(running) < len(gained):
            drop_finished(running, state, target, None, sampler)
            drafter.select_rows(running)
        meter.clock.lap("other")
        draft = drafter.propose(state, meter.nfe)
        meter.clock.lap("drafter")
        tree, at = draft.tree, state.length - 1
        logits = target.forward_tree(torch.cat([state.last(), draft.tokens], dim=1), at, tree)
        meter.clock.lap("target")
        p = sampler(logits, state.length[:, None] + tree.depth)
        accept_u = tree.uniforms(state, meter.nfe)[ACCEPT]
        resample_u = state.rng.uniforms(state.positions(tree.height + 1), meter.nfe)[RESAMPLE]
        verdict = test(p, draft, bind_features(rule, target, len(state.ids)), accept_u, resample_u)
        meter.clock.lap("rule")
        target.settle(at, verdict.path)
        meter.clock.lap("target")
        drafter.observe(verdict, state)
        meter.clock.lap("drafter")
        gained = state.commit(verdict.tokens, verdict.accepted)
        meter.count(verdict, gained, state.ids)
