"""What lies between two calls of a model, as CUDA graphs.

Verification, coupling, the commit and the next drafts are about ten kernels. Launched from Python one by one they take
longer than a small model's call. Once windows of a decode are alike, what is launched between two calls is captured and
then replayed: a graph reads the logits and the drafts of a window where the calls and the graphs before have left them,
and leaves the drafts and the numbers of the next one. Single steps are windows of one token.

Two graphs take turns, so that distributions and tokens of a window, which those of the next one refer to, stay where
they are until that one is verified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar
from weakref import finalize

import torch
from torch import Tensor

from mmspec.decoding.ahead import Ahead, OpenedWindow, PendingTokens, PendingVerdict
from mmspec.decoding.batch import BatchState
from mmspec.decoding.cuda_graphs import GraphPool, can_capture, capture
from mmspec.decoding.stats import Meter
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.logits import Logits, split_cfg
from mmspec.sampling.mirrored import on_device
from mmspec.sampling.rejection import Draft
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import Sampler

# Tokens that a row must lack, as a capture takes longer than a few windows without. A step is launched in half the time
# of a window, and many hosts are faster with it than the model.
WORTH, WORTH_STEPS = 64, 256


class Sendable(Protocol):
    """Results that the host does not have yet."""

    def send(self) -> Self:
        """Begins to copy them to the host."""
        ...


R = TypeVar("R", bound=Sendable)


class _Launched(NamedTuple, Generic[R]):
    """What is launched between two calls.

    Attributes:
        pending: The results of the window.
        tokens: int64 [B, W], its tokens.
        accepted: int64 [B], the number of accepted drafts.
        draft: Makes the drafts of the next window, whose random numbers it is given.
    """

    pending: R
    tokens: Tensor
    accepted: Tensor
    draft: Callable[[WindowRNG], Draft]


@dataclass(frozen=True)
class _Half(Generic[R]):
    """One of the two graphs.

    Attributes:
        graph: The graph.
        logits: [R, W, V], where it reads the logits of its window.
        pending: The results of its window.
        numbers: What it leaves of the next window, see `BatchState.following`.
        draft: The drafts of the next window.
    """

    graph: Any
    logits: Tensor
    pending: R
    numbers: list[Tensor]
    draft: Draft


class Captured(Generic[R]):
    """The windows of a decode from one on, as long as they have the same width and the same rows.

    Args:
        halves: The graphs; the first one is for the next window.
        width: W.
    """

    def __init__(self, halves: tuple[_Half[R], _Half[R]], width: int) -> None:
        self._halves, self._width = halves, width

    def take(self, ahead: Ahead, state: BatchState, meter: Meter, call: bool = True) -> tuple[R, OpenedWindow | None]:
        """Launches all that follows the model's call of a window, up to the call of the next one.

        Args:
            ahead: The parts of the decode.
            state: The batch, in which the window is open.
            meter: Measures the time.
            call: Whether there is a next window.

        Returns:
            The results of the window, which are on their way; and the next window, or None if there is none or if its
            call must wait for the host.
        """
        now, then = self._halves
        state.limits()  # what the graph reads of it may have to be written
        meter.clock.lap("other")
        now.graph.replay()
        pending = now.pending.send()
        meter.clock.lap("rule")
        self._halves, logits = (then, now), None
        if call:
            draws = state.following(now.numbers, self._width, self._width)
            assert now.draft.window is not None
            logits = ahead.target.forward_ahead(now.draft.window, state.before, then.logits)
            meter.clock.lap("target")
        if logits is None:
            state.close()
            return pending, None
        return pending, OpenedWindow(self._width, state.ids, draws, now.draft, logits, self)


CapturedWindows = Captured[PendingVerdict]
CapturedSteps = Captured[PendingTokens]


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

    memory, guided = _memory(opened.logits)
    first = copied_draft(opened.draft, split_cfg(memory[1], guided))
    if first is None:
        return None

    def launch(logits: Logits, draft: Draft, draws: WindowRNG) -> _Launched[PendingVerdict]:
        pending = ahead.sampler.verify_ahead(sampler(logits, draws.positions), draft, rule, draws)
        assert pending is not None
        verdict = pending.verdict

        def following(draws_after: WindowRNG) -> Draft:
            drafted = drafter.draft_ahead(verdict, state, draws, draws_after)
            assert drafted is not None
            return drafted

        return _Launched(pending, verdict.tokens, on_device(verdict.accepted, state.device), following)

    return _capture(state, memory, guided, first, launch, overwrite_draft, opened.width)


def capture_steps(ahead: Ahead, sampler: Sampler, state: BatchState, logits: Logits) -> CapturedSteps | None:
    """As `capture_windows`, for single steps without a drafter.

    Args:
        ahead: See there.
        sampler: See there.
        state: The batch, in which a window of one token is open.
        logits: Of that token.
    """
    memory, guided = _memory(logits)
    none = torch.zeros(len(state.ids), dtype=torch.int64, device=state.device)
    first = Draft(none, none, none[:, None].clone())

    def launch(logits: Logits, draft: Draft, draws: WindowRNG) -> _Launched[PendingTokens]:
        pending = ahead.sampler.sample_ahead(sampler(logits, draws.positions), draws)
        assert pending is not None
        # Rows that the token ends are read as if they went on, and -1 stands for an invalid distribution.
        window = pending.tokens.clamp(min=0)
        return _Launched(pending, pending.tokens, none, lambda draws_after: Draft(none, none, window))

    def overwrite(draft: Draft, new: Draft) -> None:
        assert draft.window is not None and new.window is not None
        draft.window.copy_(new.window)

    with state.unchanged():  # compiles the kernels that steps before have not run, and writes the token of this one
        draws = state.move()[1]
        found = launch(split_cfg(memory[0], guided), first, draws)
        state.write(found.tokens, found.accepted, 1)
    return _capture(state, memory, guided, first, launch, overwrite, 1)


def _memory(logits: Logits) -> tuple[tuple[Tensor, Tensor], bool]:
    """Memory of two windows' logits, [R, W, V] each, the first one with these; and whether there is guidance."""
    both = torch.cat([part for part in logits if part is not None])
    return (both, torch.empty_like(both)), logits.uncond is not None


def _capture(
    state: BatchState,
    memory: tuple[Tensor, Tensor],
    guided: bool,
    first: Draft,
    launch: Callable[[Logits, Draft, WindowRNG], _Launched[R]],
    overwrite: Callable[[Draft, Draft], None],
    width: int,
) -> Captured[R] | None:
    pool, halves = GraphPool.of(state.device), list[_Half[R]]()
    state.limits()  # a capture cannot copy them to the device
    made: list[Any] = []

    def between(place: Tensor, draft: Draft, draws: WindowRNG) -> None:
        launched = launch(split_cfg(place, guided), draft, draws)
        numbers = state.write(launched.tokens, launched.accepted, width)
        parts = state.split(numbers, width)
        following = state.following(parts, width, width)
        new = launched.draft(following)
        if halves:  # the second one leaves its results where the first one reads them
            first_numbers.copy_(numbers)
            overwrite(first, new)
            parts, new = state.split(first_numbers, width), first
        made[:] = launched.pending, parts, new, following

    with state.unchanged():
        first_numbers, draws = state.move()
        draft = first
        for place in memory:
            graph = capture(partial(between, place, draft, draws), state.device, pool)
            if graph is None:
                return None
            pending, parts, draft, draws = made
            halves.append(_Half(graph, place, pending, parts, draft))
    captured = Captured((halves[0], halves[1]), width)
    finalize(captured, pool.release, state.device).atexit = False
    return captured
