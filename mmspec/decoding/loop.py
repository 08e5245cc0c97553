"""The draft-and-verify loop, which every recipe and every kind of token runs through.

A `RunningBatch` takes one window at a time; `mmspec.decoding.to_end` goes on to the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mmspec.decoding.batch import BatchState
from mmspec.decoding.drafter import NoDrafts
from mmspec.decoding.rows import select_rows
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.step import OnStep
from mmspec.decoding.target import Target, cache_bytes
from mmspec.decoding.window_policy import Committed, WindowPolicy
from mmspec.decoding.windows import Windows, draws_of_plain_steps
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.sampler import Sampler

# (verdict, which rows are running, host bool [B]) -> what is committed of it.
Cut = Callable[[Any, NDArray[np.bool_]], Any]

# Rows that have finished stay in the batch until one in so many has: dropping rows copies the KV cache of the others.
_KEPT = 4


class _Counts(NamedTuple):
    """What was counted before a window: rows, their tokens, target calls, drafts, the time."""

    ids: NDArray[np.int64]
    tokens: NDArray[np.int64]
    target_calls: int
    tested: int
    accepted: int
    seconds: float


class RunningBatch:
    """A batch that is being decoded, window by window.

    A policy is told of committed tokens and of times alone (`mmspec.decoding.window_policy.Committed`), so that an
    exact rule stays exact under any policy. One that measures time chooses other widths in another run. A seed then
    gives other tokens of the same distribution.

    Args:
        target: The model whose distribution the output follows.
        drafter: Proposes tokens; a `mmspec.decoding.trees.TreeDrafter` with the windows `Trees`; None for plain
            decoding.
        sampler: Makes the target distribution, samples from it and verifies drafts against it.
        state: The batch; holds the result afterwards.
        policy: Chooses the width of each window: tokens in one target call, the last accepted one included.
        meter: Counts calls, tokens and seconds.
        on_step: Called after every target call. An exception in it ends the loop.
        windows: How windows are proposed, read, verified and committed; None for those of a chain of drafts.
        clock: Returns the current time in seconds.

    Attributes:
        parts: All that holds something per row; see `mmspec.decoding.rows`.
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
        windows: type[Windows] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target = target
        self.drafter: Any = NoDrafts() if drafter is None else drafter
        self.sampler = sampler
        self.state = state
        self.meter = meter
        self._on_step = on_step
        self._clock = clock
        kind = windows or _chains_on(state.device)
        self._windows = kind(target, self.drafter, rule, sampler, state, meter)
        # The drafter before the target: it may still have to read the features of the prompts.
        self.parts = self.drafter, target, sampler, state
        self._is_plain = drafter is None
        self._policy, self._most_steps, self._rows = policy, sys.maxsize, len(state.ids)
        self.first_tokens = 1
        self.complete_stats: Callable[[Stats], Stats] | None = None

    @property
    def cache_bytes(self) -> int:
        """Bytes of the target's KV cache; 0 if the target does not tell."""
        return cache_bytes(self.target)

    @property
    def draft_calls(self) -> int:
        """Calls of the drafter's own model."""
        return int(self.drafter.calls)

    def stats(self) -> Stats:
        """The statistics so far."""
        stats = self.meter.stats(self.draft_calls, self.state.truncated)
        return stats if self.complete_stats is None else self.complete_stats(stats)

    def use(self, policy: WindowPolicy | None = None, most_steps: int | None = None) -> None:
        """Sets the policy of the next windows, which is for the rows that are running now.

        Args:
            policy: The policy; None for the one so far.
            most_steps: The largest number of plain steps in one `step`; None for that so far, at first any number.
        """
        self._rows = len(self.state.running())
        self._policy, self._most_steps = policy or self._policy, most_steps or self._most_steps

    def start(self) -> bool:
        """Reads the prompts and samples the first tokens of each row; returns whether any row is running."""
        plain = min(self._most_steps, self.state.layout.length)
        self._decode(1, plain if self._is_plain else self.first_tokens)
        self.drop_finished()
        return bool(self.state.is_running.any())

    def step(self) -> bool:
        """Decodes one window, or the plain steps that the policy takes instead; returns whether any row is running."""
        state, policy, windows = self.state, self._policy, self._windows
        running = state.running()
        whole = len(running) == self._rows
        width = policy.choose() if whole else policy.settled()
        before = self._counts(running) if policy.learns else None
        together = width > 1 and whole and windows.advances_together and policy.together() and _is_aligned(state)
        windows.given_up = False
        if width == 1:
            self._decode(1, min(policy.steps(), state.remaining, self._most_steps))
        else:
            next_width = (policy.next() if whole else policy.settled()) if windows.goes_ahead and not together else 0
            self._decode(width, 1, next_width, in_step if together else None)
        if before is not None:
            committed = self._committed(before, together)
            if whole and not windows.given_up:
                policy.record(width, committed)
            else:  # calls with fewer rows take less time, and cannot be compared
                policy.rest(width, committed)
        self.drop_finished()
        return bool(state.is_running.any())

    def _decode(self, width: int, count: int, next_width: int = 0, cut: Cut | None = None) -> None:
        """Decodes up to `count` windows: each is proposed, read by the target, verified, observed and committed."""
        # Width 1 is plain steps; windows with drafts come one at a time. `next_width` is 0 if it is unknown; a `cut`
        # chooses what is committed of a verdict.
        state, meter, windows = self.state, self.meter, self._windows
        draws = draws_of_plain_steps(state, meter, count)
        for left in reversed(range(count)):
            window = windows.launch(width, draws)
            verdict = windows.verify(window, 1 if left else next_width)
            kept = verdict if cut is None else cut(verdict, state.is_running)
            self.drafter.observe(kept, state, window.draws)
            meter.clock.lap("drafter")
            gained = windows.commit(kept)
            meter.count(verdict, gained, state.ids)  # a draft where its row is cut counts as accepted if it was
            if self._on_step is not None:
                self._on_step(state.step(meter.target_calls))
            if not state.is_running.any():
                return
            if left:
                self.drop_finished()

    def _counts(self, running: list[int]) -> _Counts:
        """What has been counted so far, for a policy that learns; rows with the fewest tokens come first."""
        state, meter = self.state, self.meter
        ids = state.ids[running][np.argsort(state.length[running], kind="stable")]
        tested, accepted = int(meter.tested.sum()), int(meter.accepted.sum())
        return _Counts(ids, meter.tokens[ids], meter.target_calls, tested, accepted, self._clock())

    def _committed(self, before: _Counts, together: bool) -> Committed:
        """What the calls since then have committed."""
        state, meter, ids = self.state, self.meter, before.ids
        tokens, calls = meter.tokens[ids], meter.target_calls - before.target_calls
        left = np.isin(ids, state.ids[state.is_running])
        progress = (tokens[left].min() if left.any() else tokens.max()) - before.tokens.min()
        tested, accepted = int(meter.tested.sum()) - before.tested, int(meter.accepted.sum()) - before.accepted
        seconds = (self._clock() - before.seconds) / calls
        return Committed(tokens - before.tokens, int(progress), seconds, calls, tested, accepted, together)

    def drop_finished(self, at_once: bool = False) -> None:
        """Drops the finished rows everywhere, if they are enough of the batch and not all.

        Args:
            at_once: Whether any number is enough.
        """
        running, rows = self.state.running(), len(self.state.ids)
        finished = rows - len(running)
        if not running or not finished:
            return
        if not at_once and getattr(self.target, "reads_finished", False):  # see `mmspec.audio.depth.captured_depth`
            return
        at_once = at_once or bool(getattr(self.sampler, "counts_all_rows", False))  # see `LatentSampler`
        if at_once or finished * _KEPT >= rows:
            for part in self.parts:
                select_rows(part, running, rows)


def in_step(verdict: Verdict, is_running: NDArray[np.bool_]) -> Verdict:
    """A verdict by which all rows advance by the same number of tokens, that of the row with the fewest; a `Cut`.

    Rows that stand at the same position keep doing so, which later plain steps are cheaper for. The accepted drafts
    of the other rows beyond that are drafts again. That stays exact as long as no policy is told that they were
    accepted: whether all rows are cut at a slot is decided by the tests of that slot and of those before it.
    """
    return replace(verdict, counts=Numbers(np.full_like(verdict.accepted, verdict.accepted[is_running].min())))


def _is_aligned(state: BatchState) -> bool:
    """Whether all running rows have the same number of tokens."""
    lengths = state.length[state.is_running]
    return bool((lengths == lengths[0]).all())


def _chains_on(device: torch.device) -> type[Windows]:
    """The windows of chains of drafts on a device."""
    if device.type == "cpu":
        return Windows
    from mmspec.decoding.device_windows import DeviceWindows

    return DeviceWindows
