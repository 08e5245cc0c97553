"""Drafting while the target verifies.

PEARL (Liu et al. 2024, arXiv 2408.11850): while the target reads a window, the draft model goes on as if all of it were
accepted. If it was, the next window is there already. The token after the window, which the target samples, is guessed
with the random number that it will be sampled with, so that the guess is right wherever draft model and target agree.
What is drafted ahead is what would be drafted then, with the same random numbers: tokens are those of the recipe
`draft`, and only seconds differ.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_model import ModelDrafter, draft_model_of
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import RESAMPLE, WindowRNG
from mmspec.sampling.sampler import Sampler


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
        tokens: int64 [B, m + 1], the window before it and the guess after that.
        length: Host int64 [B], tokens of each row with these.
        iteration: Host int64 [B], of its random numbers.
        draft: The window.
    """

    tokens: Tensor
    length: NDArray[np.int64]
    iteration: NDArray[np.int64]
    draft: Draft

    def fits(self, state: BatchState, count: int, draws: WindowRNG) -> bool:
        """Whether it is what would be drafted now in every running row."""
        rows = state.running()
        if count > self.draft.tokens.shape[1] or len(state.ids) != len(self.length):
            return False
        if (state.length != self.length)[rows].any() or (draws.iteration[:, 0] != self.iteration)[rows].any():
            return False
        same = (state.last(self.tokens.shape[1]) == self.tokens).all(1)
        return bool(same[rows].all())


class PearlDrafter:
    """Drafts with a draft model, the next window while the target reads this one.

    Args:
        inner: Drafts with the model, which nothing else uses.
        sampler: That of the model.
        executor: Runs the draft model beside the target.
    """

    def __init__(self, inner: ModelDrafter, sampler: Sampler, executor: Executor) -> None:
        self._inner = inner
        self._sampler = sampler
        self._executor = executor
        self._ahead: _Ahead | None = None
        self._running: Running | None = None

    @property
    def calls(self) -> int:
        return self._inner.calls

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        self._wait()
        self._inner.observe(verdict, state, draws)

    def select_rows(self, row_ids: list[int]) -> None:
        self._wait()
        self._ahead = None
        self._inner.select_rows(row_ids)

    def join(self, other: PearlDrafter, row_ids: list[int], state: BatchState, other_state: BatchState) -> None:
        """See `mmspec.decoding.loop.JoinableDrafter`."""
        for drafter in (self, other):
            drafter._wait()
            drafter._ahead = None
        self._inner.join(other._inner, row_ids, state, other_state)

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        self._wait()  # after an error in the target
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.fits(state, count, draws):
            draft = Draft(ahead.draft.tokens[:, :count], ahead.draft.q[:, :count])
        else:
            draft = self._inner.propose(state, count, draws)
        # The model's cache reaches no further past the end than one window.
        if (state.layout.length - state.length >= 2 * (count + 1)).all():
            fork = state.fork(2 * (count + 1), seed=0)
            inference = torch.is_inference_mode_enabled()

            def work() -> None:
                with torch.inference_mode(inference):  # a setting of each thread
                    self._ahead = self._draft_ahead(fork, draft, draws)

            self._running = self._executor.submit(work)
        return draft

    def _draft_ahead(self, fork: BatchState, draft: Draft, draws: WindowRNG) -> _Ahead:
        """Goes on after a draft, on a copy of the batch."""
        count = draft.tokens.shape[1]
        iteration = draws.iteration[:, :1]
        fork.commit(draft.tokens, np.full(len(fork.ids), count - 1))
        after = fork.window(1, iteration)
        guess = self._sampler.sample(self._inner.propose(fork, 1, after).q, after, RESAMPLE)
        fork.commit(guess, np.zeros(len(fork.ids), dtype=np.int64))
        ahead = self._inner.propose(fork, count, fork.window(count + 1, iteration + 1))
        return _Ahead(torch.cat([draft.tokens, guess], dim=1), fork.length, iteration[:, 0] + 1, ahead)

    def _wait(self) -> None:
        """Waits for the draft model, and raises what went wrong in it."""
        running, self._running = self._running, None
        if running is not None:
            running.result()


def build(context: DraftingContext) -> PearlDrafter:
    """Builds the drafter of the recipe `pearl`."""
    model, settings = draft_model_of(context)
    sampler = context.layout.sampler(settings, context.target.device)
    return PearlDrafter(ModelDrafter(model, sampler), sampler, ThreadPoolExecutor(1, "mmspec-pearl"))
