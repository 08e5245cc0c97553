"""The window step of tree drafts, `decode_tree`; a `window_step` of `mmspec.decoding.loop.RunningBatch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.foreign_parts import check_tree
from mmspec.decoding.stats import Meter
from mmspec.decoding.target import Target, TreeTarget, bind_features
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.probs import Probs
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG
from mmspec.sampling.sampler import Sampler
from mmspec.sampling.tree import TreeDraft
from mmspec.sampling.tree_rejection import Outcome, TreeVerdict

# Verifies a tree: (ops, p, draft, rule, uniform numbers by node, uniform numbers by depth) -> verdict.
TreeVerification = Callable[[TorchOps, Probs, TreeDraft, Accept, Tensor, Tensor], TreeVerdict]


def verify_tree(
    ops: TorchOps, p: Probs, draft: TreeDraft, rule: Accept, accept_u: Tensor, resample_u: Tensor
) -> TreeVerdict:
    """Tests siblings in turn, each against the residual of the ones before it; a `TreeVerification`."""
    return ops.verify_tree(p, draft, rule, accept_u, resample_u)


class TreeDrafter(Protocol):
    """Proposes trees of draft tokens, independently of the target and the acceptance rule.

    Values per row are named in `ROWS`; see `mmspec.decoding.rows`.
    """

    @property
    def calls(self) -> int:
        """Calls of the drafter's own model."""
        ...

    @property
    def verify(self) -> TreeVerification:
        """Verifies the trees; the test must match the way in which siblings are sampled."""
        ...

    def propose(self, state: BatchState, iteration: NDArray[np.int64]) -> TreeDraft:
        """Proposes a tree after the last token of each row; every row has a token already.

        Random numbers come from `state.rng` at this `iteration`, host int64 [B, 1], stream DRAFT.
        """
        ...

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        """Called after verification, before the batch advances; `draws` is given after a single step only."""
        ...


def decode_tree(
    target: Target,
    drafter: TreeDrafter,
    rule: Accept,
    sampler: Sampler,
    state: BatchState,
    width: int,
    meter: Meter,
) -> None:
    """Drafts a tree and verifies it in one target call. Every row must have a token already.

    Entries past the end of a row are read and ignored: if trees were cut there, a row would depend on the others.

    Args:
        target: A `TreeTarget`.
        drafter: Proposes the tree.
        rule: The acceptance rule.
        sampler: Makes the target distribution.
        state: The batch.
        width: Ignored; the drafter determines the size of its trees.
        meter: Counts calls, tokens and seconds.
    """
    assert isinstance(target, TreeTarget)
    meter.clock.lap("other")
    iteration = meter.iteration(state.ids)
    draft = drafter.propose(state, iteration)
    check_tree(drafter, draft, len(state.ids))
    meter.clock.lap("drafter")
    tree, numbers, window = draft.tree, draft.numbers, draft.window
    if numbers is None:
        numbers, _ = state.tree_numbers(tree, iteration)
    if window is None:
        window = torch.cat([state.last(), draft.tokens], dim=1)
    at = state.before.host
    logits = target.forward_tree(window, at, tree)
    meter.clock.lap("target")
    p = sampler(logits, numbers.after)
    uniforms = numbers.of_nodes(ACCEPT), numbers.of_depths(RESAMPLE)
    verdict = drafter.verify(state.ops, p, draft, bind_features(rule, target, len(state.ids)), *uniforms)
    meter.clock.lap("rule")
    target.settle(at, verdict.path.host)
    meter.clock.lap("target")
    drafter.observe(verdict, state)
    meter.clock.lap("drafter")
    meter.count(verdict, state.commit(verdict.tokens, verdict.accepted, verdict.on_host), state.ids)
