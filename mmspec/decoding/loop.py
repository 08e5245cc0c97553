"""The draft-and-verify loop `decode`, which every recipe and every kind of token runs through."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from mmspec.decoding.batch import BatchState, Step
from mmspec.decoding.stats import Meter
from mmspec.decoding.target import Target, bind_features
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import Sampler

OnStep = Callable[[Step], None]


class TracksBatch(Protocol):
    """The methods that chain and tree drafters share."""

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Called after verification, before the batch advances: `state` still ends where the window began."""
        ...

    def select_rows(self, row_ids: list[int]) -> None:
        """Keeps these rows, in this order, and drops all others."""
        ...


class Drafter(TracksBatch, Protocol):
    """Proposes a chain of draft tokens, independently of the target and the acceptance rule."""

    @property
    def calls(self) -> int:
        """Calls of the drafter's own model."""
        ...

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        """Drafts the next tokens of each row.

        Args:
            state: The batch.
            count: Draft tokens per row, at least 1.
            draws: The random numbers of the window, `count + 1` positions. A drafter uses the streams DRAFT and INIT.

        Returns:
            Tokens [B, count, *cell], each with the distribution q that it was sampled from.
        """
        ...


NOTHING = Draft(torch.empty(0), torch.empty(0))  # the draft of a step without drafts


class WindowPolicy(Protocol):
    """Chooses the width of each window."""

    def choose(self) -> int:
        """The width of the next window; 1 is a single step without drafts."""
        ...

    def settled(self) -> int:
        """The best known width, which is used once a row of the batch is finished and nothing is measured any more."""
        ...

    def steps(self) -> int:
        """The number of single steps to take if the width is 1."""
        ...

    def record(self, width: int, seconds: float, gained: float, calls: int = 1) -> None:
        """Called after the target calls of a window, while no row of the batch is finished.

        Args:
            width: The chosen width.
            seconds: Wall-clock seconds per target call.
            gained: Tokens that one of the slowest rows gained per target call, on average.
            calls: The number of target calls.
        """
        ...


@dataclass(frozen=True)
class FixedWindow:
    """A policy that always chooses the same width."""

    width: int

    def choose(self) -> int:
        return self.width

    def settled(self) -> int:
        return self.width

    def steps(self) -> int:
        return 1

    def record(self, width: int, seconds: float, gained: float, calls: int = 1) -> None:
        pass


# One window: draft, call the target, verify, commit. Returns whether any row is still running.
WindowStep = Callable[[Target, Any, Accept, Sampler, BatchState, int, Meter, OnStep | None], bool]


def decode(
    target: Target,
    drafter: TracksBatch,
    rule: Accept,
    sampler: Sampler,
    state: BatchState,
    policy: WindowPolicy,
    meter: Meter,
    on_step: OnStep | None,
    window_step: WindowStep | None = None,
    plain_tokens: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Drafts and verifies until every row is finished.

    The width of a window never depends on the drafts that it cuts off, so an exact rule stays exact under any policy.
    A policy that measures time chooses other widths in another run. A seed then gives other tokens of the same
    distribution.

    Args:
        target: The model whose distribution the output follows.
        drafter: Proposes tokens; a `mmspec.decoding.tree_loop.TreeDrafter` if `window_step` is `decode_tree`.
        rule: The acceptance rule.
        sampler: Makes the target distribution, samples from it and verifies drafts against it.
        state: The batch; holds the result afterwards.
        policy: Chooses the width of each window: tokens in one target call, the last accepted one included.
        meter: Counts calls, tokens and seconds.
        on_step: Called after every target call. An exception in it ends the loop.
        window_step: Decodes one window; None for `decode_window`.
        plain_tokens: Tokens of each row, 1 or more, that the target samples without drafts at the beginning.
        clock: Returns the current time in seconds.
    """
    step: WindowStep = window_step or decode_window
    rows = len(state.ids)
    running = decode_steps(target, sampler, state, plain_tokens, meter, on_step, drafter)
    while running:
        whole = len(state.ids) == rows
        width = policy.choose() if whole else policy.settled()
        # The batch lasts as long as its slowest rows: what counts is the gain of the quarter with the fewest tokens.
        slowest = np.asarray(state.ids)[np.argsort(state.length, kind="stable")[: -(-len(state.ids) // 4)]]
        start, calls, tokens, row_calls = clock(), meter.nfe, meter.tokens[slowest].sum(), meter.calls[slowest].sum()
        if width == 1:
            remaining = int((state.layout.length - state.length).max())
            running = decode_steps(target, sampler, state, min(policy.steps(), remaining), meter, on_step, drafter)
        else:
            running = step(target, drafter, rule, sampler, state, width, meter, on_step)
        calls = meter.nfe - calls
        gained = (meter.tokens[slowest].sum() - tokens) / (meter.calls[slowest].sum() - row_calls)
        if whole:  # calls with fewer rows take less time, and cannot be compared
            policy.record(width, (clock() - start) / calls, float(gained), calls)


def decode_window(
    target: Target,
    drafter: Drafter,
    rule: Accept,
    sampler: Sampler,
    state: BatchState,
    width: int,
    meter: Meter,
    on_step: OnStep | None,
) -> bool:
    """Drafts a chain and verifies it in one target call. Every row must have a token already.

    Args:
        target: The model.
        drafter: Proposes the chain.
        rule: The acceptance rule.
        sampler: Makes the target distribution and verifies the drafts against it.
        state: The batch.
        width: Tokens in the target call, the last accepted one included.
        meter: Counts calls, tokens and seconds.
        on_step: Called after the target call.

    Returns:
        Whether any row is still running.
    """
    # Keep one slot past the end, so that whether the last position is drafted does not depend on the other rows.
    width = min(width, int((state.layout.length - state.length).max()) + 1)
    positions = state.positions(width)
    draws = state.rng.window(positions, meter.nfe)
    tokens, draft = state.last(), NOTHING
    meter.clock.lap("other")
    if width > 1:
        draft = drafter.propose(state, width - 1, draws)
        tokens = torch.cat([tokens, draft.tokens], dim=1)
        meter.clock.lap("drafter")
    logits = target.forward(tokens, state.length - 1)
    meter.clock.lap("target")
    verdict = sampler.verify(sampler(logits, positions), draft, bind_features(rule, target, len(state.ids)), draws)
    meter.clock.lap("rule")
    drafter.observe(verdict, state, draws)
    meter.clock.lap("drafter")
    gained = state.commit(verdict.tokens, verdict.accepted)
    meter.count(verdict, gained, state.ids)
    if on_step is not None:
        on_step(state.step(meter.nfe))
    running = state.running()
    if 0 < len(running) < len(gained):
        drop_finished(running, state, target, drafter, sampler)
    return bool(running)


def decode_steps(
    target: Target,
    sampler: Sampler,
    state: BatchState,
    count: int,
    meter: Meter,
    on_step: OnStep | None,
    drafter: TracksBatch | None = None,
) -> bool:
    """Samples up to `count` tokens of each row, one per target call; the first call of a run is the prefill.

    Plain decoding is this function with the whole length as `count`.

    Args:
        target: The model.
        sampler: Makes the target distribution and samples from it.
        state: The batch.
        count: Tokens per row.
        meter: Counts calls, tokens and seconds.
        on_step: Called after every target call.
        drafter: Observes every step; None in plain decoding.

    Returns:
        Whether any row is still running.
    """
    positions = state.positions(count)
    draws = state.rng.window(positions, meter.nfe + np.arange(count))
    tokens = state.last()
    for n in range(count):
        meter.clock.lap("other")
        logits = target.forward(tokens, state.length - 1) if meter.nfe else target.prefill()
        meter.clock.lap("target")
        p, slot_draws = sampler(logits, positions[:, n : n + 1]), draws.slot(n)
        tokens = sampler.sample(p, slot_draws)
        meter.clock.lap("rule")
        if drafter is not None:
            drafter.observe(Verdict(tokens, np.zeros(len(p), dtype=np.int64), p, NOTHING), state, slot_draws)
            meter.clock.lap("drafter")
        meter.count_plain(p, tokens, state.ids)
        running = state.append(tokens)
        if on_step is not None:
            on_step(state.step(meter.nfe))
        if not running:
            return False
        if len(running) < len(tokens):
            drop_finished(running, state, target, drafter, sampler)
            draws.select_rows(running)
            positions, tokens = positions[running], tokens[running]
    return True


def drop_finished(
    running: list[int], state: BatchState, target: Target, drafter: TracksBatch | None, sampler: Sampler
) -> None:
    """Keeps the rows `running` in batch, target, drafter and sampler, and drops all others."""
    state.select_rows(running)
    target.select_rows(running)
    sampler.select_rows(torch.tensor(running, device=target.device))
    if drafter is not None:
        drafter.select_rows(running)
