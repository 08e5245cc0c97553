"""The protocols of drafters, which propose tokens independently of the target and the acceptance rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mmspec.decoding.batch import BatchState
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG


class Drafter(Protocol):
    """Proposes a chain of draft tokens, independently of the target and the acceptance rule.

    Values per row are named in `ROWS`; see `mmspec.decoding.rows`.
    """

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

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Called after verification, before the batch advances: `state` still ends where the window began."""
        ...


class NoDrafts:
    """The drafter of plain decoding, whose windows have one token each."""

    ROWS = ()
    calls = 0
    drafts_ahead = True  # see `mmspec.decoding.ahead.DraftsAhead`

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Nothing is learned."""

    def draft_ahead(self, verdict: Verdict, state: BatchState, draws: WindowRNG, next_draws: WindowRNG) -> None:
        """There is no window with drafts."""


@runtime_checkable
class UploadsWithWindow(Drafter, Protocol):
    """A drafter that needs numbers of the host on the device, which are copied with those of the window."""

    def host_arrays(self, state: BatchState, count: int, iteration: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The numbers that the next `propose` needs; not called on a CPU.

        Args:
            state: The batch.
            count: Draft tokens per row.
            iteration: Host int64 [B, 1], of the random numbers.
        """
        ...

    def take_arrays(self, arrays: Sequence[Numbers]) -> None:
        """Sets them, with their copies on the device."""
        ...


class ContinuationDrafter(Protocol):
    """A drafter that continues given drafts; `calls`, `observe` as in `Drafter`.

    A draft may depend on the drafts before it; its q is the distribution that it was sampled from given those. A slot
    is tested only if all slots before it were accepted, so that this q gives the exact test.
    """

    @property
    def calls(self) -> int:
        """Calls of the drafter's own model."""
        ...

    def extend(self, state: BatchState, draft: Draft, reused: Numbers, draws: WindowRNG) -> Draft:
        """Replaces the drafts after the reused ones.

        Args:
            state: The batch.
            draft: The drafts of the whole window, [B, count, *cell].
            reused: [B], the number of drafts of each row to keep, from the first one.
            draws: The random numbers of the window.
        """
        ...

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Called after verification, before the batch advances: `state` still ends where the window began."""
        ...
