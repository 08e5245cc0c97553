"""The draft-and-verify loop, which every recipe and every kind of token runs through.

A `RunningBatch` takes one window at a time; `mmspec.decoding.to_end` goes on to the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.ahead import (
    Ahead,
    OpenedWindow,
    following_width,
    open_following,
    parts_ahead,
    read_window,
)
from mmspec.decoding.batch import BatchState
from mmspec.decoding.drafter import Drafter, UploadsWithWindow
from mmspec.decoding.foreign_parts import check_draft
from mmspec.decoding.rows import can_join, join_rows
from mmspec.decoding.single_steps import NOTHING, decode_steps, drop_finished
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.step import OnStep
from mmspec.decoding.target import Target, bind_features, cache_bytes
from mmspec.decoding.window_policy import Committed, WindowPolicy
from mmspec.sampling.acceptance import Accept, FeatureRule
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import Sampler

# One window: draft, call the target, verify, commit.
WindowStep = Callable[[Target, Any, Accept, Sampler, BatchState, int, Meter], None]


class RunningBatch:
    """A batch that is being decoded, window by window.

    A policy is told of committed tokens and of times alone (`mmspec.decoding.window_policy.Committed`), so that an
    exact rule stays exact under any policy. One that measures time chooses other widths in another run. A seed then
    gives other tokens of the same distribution.

    Args:
        target: The model whose distribution the output follows.
        drafter: Proposes tokens; a `mmspec.decoding.tree_loop.TreeDrafter` if `window_step` is `decode_tree`; None for
            plain decoding.
        rule: The acceptance rule.
        sampler: Makes the target distribution, samples from it and verifies drafts against it.
        state: The batch; holds the result afterwards.
        policy: Chooses the width of each window: tokens in one target call, the last accepted one included.
        meter: Counts calls, tokens and seconds.
        on_step: Called after every target call. An exception in it ends the loop.
        window_step: Decodes one window; None for `decode_window`.
        clock: Returns the current time in seconds.

    Attributes:
        first_tokens: The number of tokens of each row that `start` samples without drafts, at least 1. Plain decoding
            samples as many as one step may have.
        complete_stats: Adds to the statistics what the sampler has counted; None for discrete tokens.
    """

    def __init__(
        self,
        target: Target,
        drafter: Any,
        rule: Accept,
        sampler: Sampler,
        state: BatchState,
        policy: WindowPolicy,
        meter: Meter,
        on_step: OnStep | None = None,
        window_step: WindowStep | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.sampler = sampler
        self.state = state
        self.meter = meter
        self._rule = rule
        self._on_step = on_step
        self._window_step: WindowStep = window_step or decode_window
        self._clock = clock
        self._policy, self._most_steps, self._rows = policy, sys.maxsize, len(state.ids)
        self.first_tokens = 1
        self.complete_stats: Callable[[Stats], Stats] | None = None
        self._opened: OpenedWindow | None = None  # the next window, where its call was launched ahead

    @property
    def cache_bytes(self) -> int:
        """Bytes of the target's KV cache; 0 if the target does not tell."""
        return cache_bytes(self.target)

    @property
    def draft_calls(self) -> int:
        """Calls of the drafter's own model."""
        return 0 if self.drafter is None else int(self.drafter.calls)

    def stats(self) -> Stats:
        """The statistics so far."""
        stats = self.meter.stats(self.draft_calls, self.state.truncated)
        return stats if self.complete_stats is None else self.complete_stats(stats)

    def use(self, policy: WindowPolicy | None = None, most_steps: int | None = None) -> None:
        """Sets the policy of the next windows, which is for the rows that are running now.

        Args:
            policy: The policy; None for the one so far.
            most_steps: The largest number of single steps in one `step`; None for that so far, at first any number.
        """
        self._rows = len(self.state.running())
        self._policy, self._most_steps = policy or self._policy, most_steps or self._most_steps

    def start(self) -> bool:
        """Reads the prompts and samples the first tokens of each row; returns whether any row is running."""
        plain = min(self._most_steps, self.state.layout.length)
        return self._steps(plain if self.drafter is None else self.first_tokens)

    def step(self) -> bool:
        """Decodes one window, or the single steps that the policy takes instead; returns whether any row is running."""
        state, meter, policy = self.state, self.meter, self._policy
        running = np.asarray(state.running())
        whole = len(running) == self._rows
        width = policy.choose() if whole else policy.settled()
        ids = state.ids[running[np.argsort(state.length[running], kind="stable")]]
        start = self._clock()
        calls, tokens, tested, accepted = (
            meter.target_calls,
            meter.tokens[ids],
            meter.tested.sum(),
            meter.accepted.sum(),
        )
        parts = self.target, self.drafter, self._rule, self.sampler, state
        windows = width > 1 and self._window_step is decode_window
        together = windows and whole and policy.together() and _is_aligned(state)
        ahead = self._ahead() if windows and not together else None
        opened = self._opened
        if opened is not None and (ahead is None or opened.ids is not state.ids or opened.width != width):
            self._opened = None
            state.close()
        given_up = opened is not None and self._opened is None  # the time of this call has that of another one in it
        if width == 1:
            self._steps(min(policy.steps(), state.remaining, self._most_steps))
        elif together:
            decode_together(*parts, width, meter)
        elif ahead is not None:
            self._window_ahead(ahead, width, policy.next() if whole else policy.settled())
        else:
            self._window_step(*parts, width, meter)
        if width > 1:
            self._report()
        calls = meter.target_calls - calls
        seconds = (self._clock() - start) / calls
        if whole and not given_up:
            tests = int(meter.tested.sum() - tested), int(meter.accepted.sum() - accepted)
            policy.record(width, Committed(meter.tokens[ids] - tokens, seconds, calls, *tests, together))
        else:  # calls with fewer rows take less time, and cannot be compared
            policy.rest(width, seconds, calls)
        self.drop_finished()
        return bool(state.is_running.any())

    def _ahead(self) -> Ahead | None:
        """The parts that can launch the next call before the host waits for this one; None if one of them cannot."""
        if self.drafter is None or isinstance(self._rule, FeatureRule):
            return None
        return parts_ahead(self.target, self.drafter, self.sampler, self.state)

    def _window_ahead(self, ahead: Ahead, width: int, following: int) -> None:
        """As `decode_window`; the call of the next window is launched before the wait, if it can be.

        Args:
            ahead: The parts of the decode.
            width: Of the window.
            following: Of the next window, most likely.
        """
        state, meter, rule, opened, self._opened = self.state, self.meter, self._rule, self._opened, None
        if opened is None:
            opened = open_window(self.target, self.drafter, state, width, meter)
        draft, draws = opened.draft, opened.draws
        following = following_width(state, opened.width, following)
        p = self.sampler(opened.logits, draws.positions)
        pending = ahead.sampler.verify_ahead(p, draft, rule, draws) if following else None
        if pending is None:
            verdict = self.sampler.verify(p, draft, rule, draws)
            meter.clock.lap("rule")
            gained = _commit(verdict, draws, self.drafter, state, meter)
        else:
            meter.clock.lap("rule")
            self._opened = open_following(ahead, pending.verdict, state, draws, following, meter)
            verdict = pending.read()
            self.drafter.observe(verdict, state, draws)
            gained = state.gain(verdict.tokens, verdict.accepted, verdict.on_host)
        meter.count(verdict, gained, state.ids)

    def _steps(self, count: int) -> bool:
        return decode_steps(self.target, self.sampler, self.state, count, self.meter, self._on_step, self.drafter)

    def _report(self) -> None:
        if self._on_step is not None:
            self._on_step(self.state.step(self.meter.target_calls))

    def drop_finished(self, at_once: bool = False) -> None:
        """Drops the rows that have finished, if they are enough of the batch.

        Args:
            at_once: Whether any number is enough.
        """
        drop_finished(self.state, self.target, self.drafter, self.sampler, at_once)

    def can_join(self, other: object) -> bool:
        """Whether the rows of another batch can join this one: models and drafters take rows in, and the layouts fit.

        Both batches must have the same recipe, and guidance or not.
        """
        if not isinstance(other, RunningBatch):
            return False
        ours, theirs = self.state.layout, other.state.layout
        same = all(
            getattr(ours, name) == getattr(theirs, name) for name in ("width", "eos", "pad", "cell", "dtype", "kind")
        )
        optional = all(
            (getattr(ours, name) is None) == (getattr(theirs, name) is None)
            for name in ("constraint", "forced", "ends", "stops")
        )
        pairs = (self.target, other.target), (self.sampler, other.sampler), (self.drafter, other.drafter)
        return same and optional and all(can_join(*pair) for pair in pairs)

    def join(self, other: RunningBatch) -> list[int]:
        """Takes in the running rows of another batch, which must not be used any more.

        They take the places of finished rows, whose tokens are lost, and are appended if there are too few.

        Args:
            other: The batch, whose rows have a token each. `can_join` is true for it.

        Returns:
            The index of each of its rows in `state.ids`.
        """
        other.drop_finished(at_once=True)
        state, new = self.state, other.state
        row_ids, theirs = state.places(len(new.ids)), new.ids.tolist()
        parts = [(self.target, other.target), (self.sampler, other.sampler), (state, new)]
        if self.drafter is not None:  # before the target: it may still have to read the features of the prompts
            parts.insert(0, (self.drafter, other.drafter))
        for ours, joining in parts:
            join_rows(ours, joining, row_ids, state, new)
        self.meter.take_rows(other.meter, state.ids[row_ids].tolist(), theirs)
        return row_ids


def decode_window(
    target: Target, drafter: Drafter, rule: Accept, sampler: Sampler, state: BatchState, width: int, meter: Meter
) -> None:
    """Drafts a chain and verifies it in one target call. Every row must have a token already.

    Args:
        target: The model.
        drafter: Proposes the chain.
        rule: The acceptance rule.
        sampler: Makes the target distribution and verifies the drafts against it.
        state: The batch.
        width: Tokens in the target call, the last accepted one included.
        meter: Counts calls, tokens and seconds.
    """
    verdict, draws = _verified(target, drafter, rule, sampler, state, width, meter)
    meter.count(verdict, _commit(verdict, draws, drafter, state, meter), state.ids)


def decode_together(
    target: Target, drafter: Drafter, rule: Accept, sampler: Sampler, state: BatchState, width: int, meter: Meter
) -> None:
    """As `decode_window`, but all rows advance by the same number of tokens, that of the row with the fewest.

    Rows that stand at the same position keep doing so, which later single steps are cheaper for. The accepted drafts
    of the other rows beyond that are drafts again. That stays exact as long as no policy is told that they were
    accepted: whether all rows are cut at a slot is decided by the tests of that slot and of those before it.
    """
    verdict, draws = _verified(target, drafter, rule, sampler, state, width, meter)
    cut = replace(verdict, counts=Numbers(np.full_like(verdict.accepted, verdict.accepted[state.is_running].min())))
    # A draft where its row is cut counts as accepted if it was.
    meter.count(verdict, _commit(cut, draws, drafter, state, meter), state.ids)


def _verified(
    target: Target, drafter: Drafter, rule: Accept, sampler: Sampler, state: BatchState, width: int, meter: Meter
) -> tuple[Verdict, WindowRNG]:
    """Drafts a chain and verifies it; returns the verdict, and the random numbers of the window."""
    opened = open_window(target, drafter, state, width, meter)
    p, rule = sampler(opened.logits, opened.draws.positions), bind_features(rule, target, len(state.ids))
    verdict = sampler.verify(p, opened.draft, rule, opened.draws)
    meter.clock.lap("rule")
    return verdict, opened.draws


def open_window(target: Target, drafter: Drafter, state: BatchState, width: int, meter: Meter) -> OpenedWindow:
    """Drafts a chain, and calls the target; arguments as in `decode_window`."""
    # Keep one slot past the end, so that whether the last position is drafted does not depend on the other rows.
    width = min(width, state.remaining + 1)
    iteration, draft = meter.iteration(state.ids), NOTHING
    if width > 1 and state.device.type != "cpu" and isinstance(drafter, UploadsWithWindow):
        meter.clock.lap("other")
        draws, arrays = state.window_with(width, iteration, drafter.host_arrays(state, width - 1, iteration))
        drafter.take_arrays(arrays)
        meter.clock.lap("drafter")
    else:
        draws = state.window(width, iteration)
        meter.clock.lap("other")
    if width > 1:
        draft = drafter.propose(state, width - 1, draws)
        check_draft(drafter, "propose", draft, state, width - 1)
        meter.clock.lap("drafter")
    logits = read_window(target, _window_of(state, draft), state.before)
    meter.clock.lap("target")
    return OpenedWindow(width, state.ids, draws, draft, logits)


def _commit(verdict: Verdict, draws: WindowRNG, drafter: Drafter, state: BatchState, meter: Meter) -> NDArray[np.int64]:
    """Tells the drafter of a verdict, and appends its tokens; returns the number that each row gained."""
    drafter.observe(verdict, state, draws)
    meter.clock.lap("drafter")
    return state.commit(verdict.tokens, verdict.accepted, verdict.on_host)


def _window_of(state: BatchState, draft: Draft) -> Tensor:
    """The last token of each row and its drafts, [B, 1 + m, *cell]."""
    if draft is NOTHING:
        return state.last()
    return torch.cat([state.last(), draft.tokens], dim=1) if draft.window is None else draft.window


def _is_aligned(state: BatchState) -> bool:
    """Whether all running rows have the same number of tokens."""
    lengths = state.length[state.is_running]
    return bool((lengths == lengths[0]).all())
