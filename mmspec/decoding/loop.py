"""The loop: every recipe runs through `decode`, plain decoding through `decode_plain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

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


class Drafter(Protocol):
    """Proposes tokens; knows neither the target nor the rule."""

    @property
    def calls(self) -> int:
        """Calls of a model of its own."""
        ...

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        """Drafts the next `count` >= 1 tokens of each row.

        `draws` has `count + 1` positions; the streams DRAFT and INIT are the drafter's.
        """
        ...

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Learns what became of the draft; `state` still stand where the window began."""
        ...

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        ...


NOTHING = Draft(torch.empty(0), torch.empty(0))


def decode(
    target: Target,
    drafter: Drafter,
    rule: Accept,
    sampler: Sampler,
    state: BatchState,
    window: int,
    meter: Meter,
    on_step: OnStep | None,
) -> None:
    """Draft and verify until every row is done.

    Args:
        target: Knows nothing of the other three.
        drafter: Knows nothing of the other three.
        rule: Knows nothing of the other three.
        sampler: Knows nothing of the other three.
        state: The batch; holds the result afterwards.
        window: Tokens in one target call, the last accepted one included; >= 1.
        meter: Counts calls, tokens and seconds.
        on_step: Called after every target call. What it raises leaves the loop.
    """
    going = decode_steps(target, sampler, state, 1, meter, on_step, drafter)
    while going:
        going = decode_window(target, drafter, rule, sampler, state, window, meter, on_step)


def decode_plain(target: Target, sampler: Sampler, state: BatchState, meter: Meter, on_step: OnStep | None) -> None:
    """One token per call: the baseline. Gives what `decode` gives with a window of 1."""
    decode_steps(target, sampler, state, state.layout.length, meter, on_step)


def decode_window(
    target: Target,
    drafter: Drafter,
    rule: Accept,
    sampler: Sampler,
    state: BatchState,
    window: int,
    meter: Meter,
    on_step: OnStep | None,
) -> bool:
    """One window: draft, one target call, verify, commit. Every row has a token already. Tells whether any runs on."""
    # One slot past the end stays: were it cut, the last position would be drafted or not depending on its mates.
    width = min(window, int((state.layout.length - state.length).max()) + 1)
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
    drafter: Drafter | None = None,
) -> bool:
    """Up to `count` tokens of each row, one per call, the prefill where nothing was read. Tells whether any runs on."""
    positions = state.positions(count)
    draws = state.rng.window(positions, meter.nfe + np.arange(count))
    tokens = state.last()
    for n in range(count):
        meter.clock.lap("other")
        logits = target.forward(tokens, state.length - 1) if meter.nfe else target.prefill()
        meter.clock.lap("target")
        p, here = sampler(logits, positions[:, n : n + 1]), draws.slot(n)
        tokens = sampler.sample(p, here)
        meter.clock.lap("rule")
        if drafter is not None:
            drafter.observe(Verdict(tokens, np.zeros(len(p), dtype=np.int64), p, NOTHING), state, here)
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
    running: list[int], state: BatchState, target: Target, drafter: Drafter | None, sampler: Sampler
) -> None:
    """Drops finished rows everywhere."""
    state.select_rows(running)
    target.select_rows(running)
    sampler.select_rows(torch.tensor(running, device=target.device))
    if drafter is not None:
        drafter.select_rows(running)
