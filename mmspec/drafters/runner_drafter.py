"""What drafters that sample from the distributions of a `DraftRunner` have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmspec.decoding.batch import BatchState
from mmspec.drafters.draft_runner import DraftRunner, SharesUpload
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.tree_rejection import Outcome


class RunnerDrafter:
    """A drafter without state of its own: its rows and its calls are those of its runner. Subclasses propose drafts.

    Args:
        runner: Provides the draft distributions.
    """

    ROWS = ("_runner",)

    def __init__(self, runner: DraftRunner) -> None:
        self._runner = runner
        self._shares = runner if isinstance(runner, SharesUpload) else None

    @property
    def calls(self) -> int:
        return self._runner.calls

    def observe(self, verdict: Outcome, state: BatchState, draws: WindowRNG | None = None) -> None:
        self._runner.observe(verdict, state)

    def host_arrays(self, state: BatchState, count: int, iteration: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return [] if self._shares is None else self._shares.root_arrays(state)

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        if self._shares is not None:
            self._shares.take_arrays(arrays)
