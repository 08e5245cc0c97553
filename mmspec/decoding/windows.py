"""Windows of a chain of drafts: how one is proposed, read by the target, verified and committed.

A plain step is a window of one token, without drafts. `mmspec.decoding.trees.Trees` and
`mmspec.decoding.device_windows.DeviceWindows` are the same for trees, and on a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.foreign_parts import check_draft
from mmspec.decoding.stats import Meter
from mmspec.decoding.target import Target, bind_features, read_window
from mmspec.sampling.acceptance import Accept, FeatureRule
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import upload
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import Sampler
from mmspec.sampling.tree import TreeDraws

if TYPE_CHECKING:
    from mmspec.sampling.tree_rejection import Outcome

NOTHING = Draft(torch.empty(0), torch.empty(0))  # the draft of a window of one token


@dataclass
class LaunchedWindow:
    """A window whose model call has been launched.

    Attributes:
        width: W.
        ids: `BatchState.ids` at that time; another array if rows have joined or left since.
        draws: The random numbers; None for a tree.
        draft: The drafts, a `TreeDraft` for a tree.
        logits: The logits, [B, W, V].
        tree_draws: The positions and the random numbers of a tree.
    """

    width: int
    ids: NDArray[np.int64]
    draws: Any
    draft: Any
    logits: Logits
    tree_draws: TreeDraws | None = None


class Windows:
    """The windows of a batch.

    Args:
        target: The model.
        drafter: Proposes the drafts.
        sampler: Makes the target distribution, samples from it and verifies drafts against it.
        state: The batch.
        meter: Counts calls, and numbers the random numbers by them.

    Attributes:
        advances_together: Whether the rows of a window may be cut where the first of them is, see
            `mmspec.decoding.loop.in_step`.
        goes_ahead: Whether calls may be launched before the host has read what the window before them has accepted.
        given_up: Whether a call that was launched ahead has been given up; set to False by who asks.
    """

    advances_together = True
    goes_ahead = False

    def __init__(
        self, target: Target, drafter: Any, rule: Accept, sampler: Sampler, state: BatchState, meter: Meter
    ) -> None:
        self.target, self.drafter, self.rule, self.sampler = target, drafter, rule, sampler
        self.state, self.meter = state, meter
        self.given_up = False
        self._reads_features = isinstance(rule, FeatureRule)
        self._latest: tuple[NDArray[np.int64], Tensor] | None = None  # the tokens of a plain step, and their rows

    def launch(self, width: int, plain_draws: Iterator[WindowRNG]) -> LaunchedWindow:
        """Proposes a window, and calls the target with it.

        Args:
            width: Tokens in the target call, the last accepted one included. Without the first, which is a plain step,
                every row must have a token already.
            plain_draws: The random numbers of plain steps, from `draws_of_plain_steps`.
        """
        state, meter = self.state, self.meter
        if width == 1:
            draws, draft = next(plain_draws), NOTHING
            meter.clock.lap("other")
        else:
            # Keep one slot past the end, so that whether the last position is drafted does not depend on other rows.
            width = min(width, state.remaining + 1)
            draws = self._begin(width, meter.iteration(state.ids))
            draft = self.drafter.propose(state, width - 1, draws)
            check_draft(self.drafter, "propose", draft, state, width - 1)
            meter.clock.lap("drafter")
        logits = self._read(draft)
        meter.clock.lap("target")
        return LaunchedWindow(width, state.ids, draws, draft, logits)

    def verify(self, window: LaunchedWindow, next_width: int) -> Outcome:
        """Verifies a window; one without drafts is sampled.

        Args:
            next_width: The width of the next window, most likely; 0 if that is unknown.
        """
        return self._tested(self.sampler(window.logits, window.draws.positions), window)

    def commit(self, verdict: Outcome) -> NDArray[np.int64]:
        """Appends the accepted tokens; returns the number of tokens that each row gained, host int64 [B]."""
        tokens, self._latest = verdict.tokens, None
        gained = self.state.commit(tokens, verdict.accepted, verdict.on_host)
        if tokens.shape[1] == 1:
            self._latest = self.state.ids, tokens
        return gained

    def _begin(self, width: int, iteration: NDArray[np.int64]) -> WindowRNG:
        """Begins a window with drafts; returns its random numbers."""
        draws = self.state.window(width, iteration)
        self.meter.clock.lap("other")
        return draws

    def _read(self, draft: Draft) -> Logits:
        """Calls the target with the last token of each row and its drafts; the first call of all reads the prompts."""
        state = self.state
        if not self.meter.calls[state.ids].any():
            return self.target.prefill()
        if draft is NOTHING:
            ids, tokens = self._latest or (None, None)
            last = tokens if tokens is not None and ids is state.ids else state.last()
            return read_window(self.target, last, state.before)
        window = torch.cat([state.last(), draft.tokens], dim=1) if draft.window is None else draft.window
        return read_window(self.target, window, state.before)

    def _tested(self, p: Probs, window: LaunchedWindow) -> Outcome:
        rule = self.rule
        if self._reads_features and window.draft is not NOTHING:
            rule = bind_features(rule, self.target, len(self.state.ids))
        verdict = self.sampler.verify(p, window.draft, rule, window.draws)
        self.meter.clock.lap("rule")
        return verdict


def draws_of_plain_steps(state: BatchState, meter: Meter, count: int) -> Iterator[WindowRNG]:
    """The random numbers of `count` plain steps, which are made at once, and again after rows have left."""
    ids, first = None, 0
    for n in range(count):
        if ids is not state.ids:
            ids, first, left = state.ids, n, np.arange(count - n)
            positions = state.positions(count - n)
            iterations = np.broadcast_to(meter.iteration(ids) + left, positions.shape)
            draws = WindowRNG(state.rng, *upload([positions, iterations], state.device))
        yield draws.slot(n - first)
