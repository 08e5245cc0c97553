"""Steps without drafts: one token per row and target call. Plain decoding, the prefill, and what a window policy takes.

Rows that have finished are dropped here as well, after a window or a step.
"""

from __future__ import annotations

import numpy as np
import torch

from mmspec.decoding.ahead import parts_ahead
from mmspec.decoding.batch import BatchState
from mmspec.decoding.drafter import Observer
from mmspec.decoding.rows import select_rows
from mmspec.decoding.stats import Meter
from mmspec.decoding.step import OnStep
from mmspec.decoding.target import Target
from mmspec.sampling.numbers import Numbers, upload
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import Sampler

NOTHING = Draft(torch.empty(0), torch.empty(0))  # the draft of a step without drafts
# Rows that have finished stay in the batch until one in so many has: dropping rows copies the KV cache of the others.
_KEPT = 4


def decode_steps(
    target: Target,
    sampler: Sampler,
    state: BatchState,
    count: int,
    meter: Meter,
    on_step: OnStep | None,
    drafter: Observer | None = None,
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
    iterations = np.broadcast_to(meter.iteration(state.ids) + np.arange(count), positions.shape)
    draws = WindowRNG(state.rng, *upload([positions, iterations], state.device))
    tokens = state.last()
    ahead, opened = parts_ahead(target, drafter, sampler, state), None
    for n in range(count):
        meter.clock.lap("other")
        if opened is not None:
            logits = opened
        else:
            has_prefilled = meter.calls[state.ids].any()
            logits = target.forward(tokens, state.length - 1) if has_prefilled else target.prefill()
            meter.clock.lap("target")
        slot_draws = draws.slot(n)
        p = sampler(logits, slot_draws.positions)
        pending = None if ahead is None else ahead.sampler.sample_ahead(p, slot_draws)
        on_host = opened = None
        if ahead is None or pending is None:
            tokens = sampler.sample(p, slot_draws)
            meter.clock.lap("rule")
        else:
            tokens = pending.tokens
            meter.clock.lap("rule")
            if n + 1 < count and state.remaining > 1:
                # Rows that the token ends are read as if they went on, and what is read is not used.
                read = tokens.clamp(min=0)  # -1 where there is no distribution
                opened = ahead.target.forward_ahead(read, Numbers(state.length - 1 + state.is_running))
                meter.clock.lap("target")
            on_host = pending.read()
        if drafter is not None:
            counts = Numbers(np.zeros(len(p), dtype=np.int64))
            drafter.observe(Verdict(tokens, counts, p, NOTHING), state, slot_draws)
            meter.clock.lap("drafter")
        meter.count_plain(p, tokens, state.ids, state.is_running)
        running = state.append(tokens, on_host)
        if on_step is not None:
            on_step(state.step(meter.target_calls))
        if not running:
            return False
        if (kept := drop_finished(state, target, drafter, sampler)) is not None:
            draws.keep(kept, state.device)
            tokens, opened = tokens[kept], None
    return True


def drop_finished(
    state: BatchState, target: Target, drafter: Observer | None, sampler: Sampler, at_once: bool = False
) -> list[int] | None:
    """Drops the finished rows of a batch everywhere, if they are enough of it and not all.

    Args:
        state: The batch.
        target: The model.
        drafter: The drafter, if there is one.
        sampler: The sampler.
        at_once: Whether any number is enough.

    Returns:
        The indices of the rows that were kept, or None if no row was dropped.
    """
    running, rows = state.running(), len(state.ids)
    finished = rows - len(running)
    if not running or not finished:
        return None
    if not at_once and getattr(target, "reads_finished", False):  # see `mmspec.audio.depth.captured_depth`
        return None
    at_once = at_once or bool(getattr(sampler, "counts_all_rows", False))  # see `LatentSampler`
    if not at_once and finished * _KEPT < rows:
        return None
    for part in (state, target, sampler, drafter):
        if part is not None:
            select_rows(part, running, rows)
    return running
