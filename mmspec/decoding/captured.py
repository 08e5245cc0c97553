"""What lies between two calls of a model, as CUDA graphs.

Verification, coupling, the commit and the next drafts are about ten kernels. Launched from Python one by one they take
longer than a small model's call. Once windows of a decode are alike, what is launched between two calls is captured and
then replayed: a graph reads the logits and the drafts of a window where the calls and the graphs before have left them,
and leaves the drafts and the numbers of the next one.

Two graphs take turns, so that distributions and tokens of a window, which those of the next one refer to, stay where
they are until that one is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from mmspec.decoding.ahead import Ahead, OpenedWindow, PendingVerdict
from mmspec.decoding.batch import BatchState
from mmspec.decoding.graph_capture import GraphPool, can_capture, capture
from mmspec.decoding.open_window import split_numbers
from mmspec.decoding.stats import Meter
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.logits import split_cfg
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import Sampler

WORTH = 64  # tokens that a row must lack: a capture takes as long as a few windows


@dataclass(frozen=True)
class _Half:
    """One of the two graphs.

    Attributes:
        graph: The graph.
        logits: [R, W, V], where it reads the logits of its window.
        pending: The verdict of its window.
        numbers: What it leaves of the next window, see `BatchState.following`.
        draft: The drafts of the next window.
    """

    graph: Any
    logits: Tensor
    pending: PendingVerdict
    numbers: list[Tensor]
    draft: Draft


class CapturedWindows:
    """The windows of a decode from one on, as long as they have the same width and the same rows.

    Args:
        halves: The graphs; the first one is for the next window.
        width: W.
    """

    def __init__(self, halves: tuple[_Half, _Half], width: int) -> None:
        self._halves, self._width = halves, width

    def take(self, ahead: Ahead, state: BatchState, meter: Meter) -> tuple[PendingVerdict, OpenedWindow | None]:
        """Launches all that follows the model's call of a window, up to the call of the next one.

        Args:
            ahead: The parts of the decode.
            state: The batch, in which the window is open.
            meter: Measures the time.

        Returns:
            The verdict of the window, which is on its way; and the next window, or None if its call must wait for the
            host.
        """
        now, then = self._halves
        state.limits()  # what the graph reads of it may have to be written
        meter.clock.lap("other")
        now.graph.replay()
        pending = now.pending.send()
        meter.clock.lap("rule")
        self._halves = then, now
        draws = state.following(now.numbers, self._width, self._width)
        assert now.draft.window is not None
        logits = ahead.target.forward_ahead(now.draft.window, state.before, then.logits)
        meter.clock.lap("target")
        if logits is None:
            state.close()
            return pending, None
        return pending, OpenedWindow(self._width, state.ids, draws, now.draft, logits, self)


def capture_windows(
    ahead: Ahead, sampler: Sampler, rule: Accept, state: BatchState, opened: OpenedWindow
) -> CapturedWindows | None:
    """Captures what follows a window, and what follows the one after it; nothing is run.

    Args:
        ahead: The parts of the decode, which have made such a window before: what they prepare once is there.
        sampler: Makes the target distributions.
        rule: The acceptance rule.
        state: The batch, in which the window is open.
        opened: The window. Its logits and drafts are copied, and the graphs read the copies.

    Returns:
        None if it cannot be captured, or would not pay.
    """
    drafter = ahead.drafter
    if not can_capture(state.device) or state.remaining < WORTH or drafter is None or not drafter.replays:
        return None
    # Imported here: Triton may be missing.
    from mmspec.sampling.lazy_probs import copied_draft, overwrite_draft
    from mmspec.sampling.lazy_verification import kernel_rule

    both = torch.cat([part for part in opened.logits if part is not None])
    memory, guided, width = (both, torch.empty_like(both)), opened.logits.uncond is not None, opened.width
    first = copied_draft(opened.draft, split_cfg(memory[1], guided))
    if first is None:
        return None
    rows, pool, halves = len(state.ids), GraphPool.of(state.device), list[_Half]()
    # A capture cannot copy these to the device, and what it computes is not there before a replay.
    state.limits()
    kernel_rule(rule, state.device)
    made: list[Any] = []

    def between(place: Tensor, draft: Draft, draws: WindowRNG) -> None:
        pending = ahead.sampler.verify_ahead(sampler(split_cfg(place, guided), draws.positions), draft, rule, draws)
        assert pending is not None
        verdict = pending.verdict
        numbers = state.write(verdict.tokens, verdict.counts.on(state.device), width)
        parts = split_numbers(numbers, rows, width)
        following = state.following(parts, width, width)
        new = drafter.draft_ahead(verdict, state, draws, following)
        assert new is not None
        if halves:  # the second one leaves its results where the first one reads them
            first_numbers.copy_(numbers)
            overwrite_draft(first, new)
            parts, new = split_numbers(first_numbers, rows, width), first
        made[:] = pending, parts, new, following

    with state.unchanged():
        first_numbers, draws = state.move()
        draft = first
        for place in memory:
            graph = capture(partial(between, place, draft, draws), state.device, pool)
            if graph is None:
                return None
            pending, parts, draft, draws = made
            halves.append(_Half(graph, place, pending, parts, draft))
    captured = CapturedWindows((halves[0], halves[1]), width)
    finalize(captured, pool.release, state.device).atexit = False
    return captured
