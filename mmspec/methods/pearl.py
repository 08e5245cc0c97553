"""Drafting while the target verifies.

PEARL (Liu et al. 2024, arXiv 2408.11850): while the target reads a window, the draft model goes on as if all of it were
accepted. If it was, the next window is there already. The token after the window, which the target samples, is guessed
with the random number that it will be sampled with, so that the guess is right wherever draft model and target agree.
What is drafted ahead is what would be drafted then, with the same random numbers: tokens are those of the recipe
`draft`, and only seconds differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_model import ModelDrafter, draft_model_of
from mmspec.sampling.numbers import Download, Numbers, upload
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import RESAMPLE, CounterRNG, WindowRNG


class Running(Protocol):
    """Work that has been started, such as a `concurrent.futures.Future`."""

    def result(self) -> object:
        """Waits for the work."""
        ...


class Executor(Protocol):
    """Starts work, such as a `concurrent.futures.Executor`."""

    def submit(self, work: Callable[[], None], /) -> Running: ...


@dataclass
class _Ahead:
    """A window that was drafted ahead.

    Attributes:
        guess: int64 [B, 1], the token after the window before it, on its way to the host.
        length: Host int64 [B], tokens of each row with that window and the guess.
        iteration: Host int64 [B], of its random numbers.
        draft: The window.
    """

    guess: Download
    length: NDArray[np.int64]
    iteration: NDArray[np.int64]
    draft: Draft

    def fits(self, state: BatchState, count: int, draws: WindowRNG, bonus: Callable[[], NDArray[np.int64]]) -> bool:
        """Whether it is what would be drafted now in every running row; `bonus` is the last token before it, [B]."""
        rows = state.running()
        if count > self.draft.tokens.shape[1] or len(state.ids) != len(self.length):
            return False
        if (state.length != self.length)[rows].any() or (draws.iteration.host[:, 0] != self.iteration)[rows].any():
            return False
        # Rows of these lengths have accepted all of the window before. The guess was sampled before that was verified,
        # so that the host seldom waits for it.
        return bool((bonus() == self.guess.wait().numpy()[:, 0])[rows].all())


class PearlDrafter:
    """Drafts with a draft model, the next window while the target reads this one.

    Args:
        inner: Drafts with the model, which nothing else uses.
        executor: Runs the draft model beside the target.
    """

    ROWS = ("_inner",)

    def __init__(self, inner: ModelDrafter, executor: Executor) -> None:
        self._inner = inner
        self._executor = executor
        self._ahead: _Ahead | None = None
        # The latest window after its verification, [B, W], where it is on the host already, and where it is not.
        self._verified: tuple[Tensor, NDArray[np.int64] | None] | None = None
        self._arrays: Sequence[Numbers] | None = None  # see `host_arrays`
        self._running: Running | None = None

    @property
    def calls(self) -> int:
        return self._inner.calls

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        self._wait()
        self._verified = verdict.tokens, verdict.on_host
        self._inner.observe(verdict, state, draws)

    def before_move(self) -> None:
        """What was drafted ahead is for other rows."""
        self._wait()
        self._ahead = None

    def host_arrays(self, state: BatchState, count: int, iteration: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The numbers of what is drafted ahead; see `_draft_ahead`."""
        return _numbers_ahead(state, count, iteration) if _has_room(state, count) else []

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        self._arrays = arrays

    def _bonus(self) -> NDArray[np.int64]:
        """The last token of the latest window, host int64 [B]."""
        assert self._verified is not None, "every row has a token"
        tokens, on_host = self._verified
        found: NDArray[np.int64] = tokens[:, -1].cpu().numpy() if on_host is None else on_host[:, -1]
        return found

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        self._wait()  # after an error in the target
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.fits(state, count, draws, self._bonus):
            draft = ahead.draft
            if count < draft.tokens.shape[1]:
                draft = Draft(draft.tokens[:, :count], draft.q[:, :count])
        else:
            draft = self._inner.propose(state, count, draws)
        arrays, self._arrays = self._arrays, None
        if _has_room(state, count):
            numbers = arrays or upload(_numbers_ahead(state, count, draws.iteration.host[:, :1]), state.device)
            window = torch.cat([state.last(), draft.tokens], dim=1) if draft.window is None else draft.window
            u = draws[RESAMPLE][:, count:]  # of the token after the window
            rng, inference = copy(state.rng), torch.is_inference_mode_enabled()

            def work() -> None:
                with torch.inference_mode(inference):  # a setting of each thread
                    self._ahead = self._draft_ahead(window, u, rng, numbers)

            self._running = self._executor.submit(work)
        return draft

    def _draft_ahead(self, window: Tensor, u: Tensor, rng: CounterRNG, numbers: Sequence[Numbers]) -> _Ahead:
        """Goes on after a window int64 [B, 1 + m]; u float32 [B, 1] is the number of the token after it."""
        # `numbers` are positions [B, n]: of the last drafts, with the token before; of the guess; of the last draft and
        # the guess; of the next window; and the iterations of its random numbers.
        drafts, here, newest, positions, iterations = numbers
        guess = self._inner.sample_after(window[:, -2:], drafts, here, u)
        tokens, last = torch.cat([window[:, -1:], guess], dim=1), Numbers(np.ones(len(window), dtype=np.int64))
        ahead = self._inner.draft_after(
            tokens, newest, last, window.shape[1] - 1, WindowRNG(rng, positions, iterations)
        )
        return _Ahead(Download(guess), positions.host[:, 0], iterations.host[:, 0], ahead)

    def _wait(self) -> None:
        """Waits for the draft model, and raises what went wrong in it."""
        running, self._running = self._running, None
        if running is not None:
            running.result()


def _has_room(state: BatchState, count: int) -> bool:
    """Whether a window of `count` drafts may be drafted ahead: the model's cache has room for one past the end."""
    return bool((state.layout.length - state.length >= 2 * (count + 1)).all())


def _numbers_ahead(state: BatchState, count: int, iteration: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The numbers of what is drafted ahead, see `PearlDrafter._draft_ahead`, of a window in this iteration."""
    after = state.length[:, None] + count
    next_window = after + 1 + np.arange(count + 1)
    drafts, newest = after + np.array([-2, -1]), after + np.array([-1, 0])
    return [drafts, after, newest, next_window, np.broadcast_to(iteration + 1, next_window.shape)]


def build(context: DraftingContext) -> PearlDrafter:
    """Builds the drafter of the recipe `pearl`."""
    model, settings = draft_model_of(context)
    sampler = context.layout.sampler(settings, context.target.device)
    return PearlDrafter(ModelDrafter(model, sampler), ThreadPoolExecutor(1, "mmspec-pearl"))
