"""Draft trees: the protocol of tree drafters, and `Trees`, their windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.foreign_parts import check_tree
from mmspec.decoding.target import TreeTarget, bind_features
from mmspec.decoding.windows import LaunchedWindow, Windows
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.ops import TorchOps
from mmspec.sampling.probs import Probs
from mmspec.sampling.rng import ACCEPT, RESAMPLE, WindowRNG
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
        """Called after verification, before the batch advances; `draws` is given after a plain step only."""
        ...


class Trees(Windows):
    """The windows of a tree drafter: trees, each read in one call of a `TreeTarget`, and plain steps.

    Entries past the end of a row are read and ignored: if trees were cut there, a row would depend on the others. Rows
    do not advance together: the rest of an accepted path is no draft of the next tree.
    """

    advances_together = False

    def launch(self, width: int, plain_draws: Iterator[WindowRNG]) -> LaunchedWindow:
        """Proposes a tree, whose size the drafter determines, and calls the target with it."""
        if width == 1:
            return super().launch(width, plain_draws)
        state, meter, target = self.state, self.meter, cast(TreeTarget, self.target)
        meter.clock.lap("other")
        iteration = meter.iteration(state.ids)
        draft = self.drafter.propose(state, iteration)
        check_tree(self.drafter, draft, len(state.ids))
        meter.clock.lap("drafter")
        tree_draws = draft.draws or state.tree_draws(draft.tree, iteration)[0]
        window = torch.cat([state.last(), draft.tokens], dim=1) if draft.window is None else draft.window
        logits = target.forward_tree(window, state.before.host, draft.tree)
        meter.clock.lap("target")
        return LaunchedWindow(width, state.ids, None, draft, logits, tree_draws)

    def verify(self, window: LaunchedWindow, next_width: int) -> Outcome:
        """Verifies a tree, and keeps its accepted path in the target."""
        draft, draws, state, meter = window.draft, window.tree_draws, self.state, self.meter
        if draws is None:
            return super().verify(window, next_width)
        p = self.sampler(window.logits, draws.after)
        rule = bind_features(self.rule, self.target, len(state.ids))
        uniforms = draws.of_nodes(ACCEPT), draws.of_depths(RESAMPLE)
        verdict: TreeVerdict = self.drafter.verify(state.ops, p, draft, rule, *uniforms)
        meter.clock.lap("rule")
        cast(TreeTarget, self.target).settle(state.before.host, verdict.path.host)
        meter.clock.lap("target")
        return verdict
