"""Model calls that are launched before the host has read what the window before them has accepted.

Between two calls of a model the host reads counts, ends rows, reports progress, and launches about ten kernels from
Python. On a fast device this takes as long as a small model's call, which has to wait for it. Where every number that
the next call needs is on the device, verification, coupling, the commit, the next drafts and the next call are launched
first, and the host does its part while the device is busy.

A call that turns out not to be needed, because all rows have ended or the batch has changed, is given up: its window is
opened again from the numbers of the host. Tokens are the same in either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.target import ReadsAhead, provides, reads_ahead
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.probs import Probs
from mmspec.sampling.rejection import Draft, Verdict
from mmspec.sampling.rng import WindowRNG


class DraftsAhead(Protocol):
    """A drafter that can draft the next window from the counts on the device."""

    @property
    def drafts_ahead(self) -> bool:
        """Whether it can do so in this decode. It then reads nothing of the target but its distributions."""
        ...

    def draft_ahead(self, verdict: Verdict, state: BatchState, draws: WindowRNG, next_draws: WindowRNG) -> Draft | None:
        """Drafts the window after a verdict. `observe` is called with the same verdict, once its counts are known.

        Args:
            verdict: The verdict; its `counts` are known on the device, and 0 on the host.
            state: The batch, in which the next window is open.
            draws: The random numbers of the verdict's window.
            next_draws: Those of the next window.

        Returns:
            The draft, or None if the host's numbers are needed.
        """
        ...


class PendingVerdict(Protocol):
    @property
    def verdict(self) -> Verdict:
        """The verdict without its counts on the host."""
        ...

    def read(self) -> Verdict:
        """The verdict; waits for its counts."""
        ...


class PendingTokens(Protocol):
    @property
    def tokens(self) -> Tensor:
        """The tokens on the device."""
        ...

    def read(self) -> NDArray[np.int64]:
        """The tokens on the host; waits for them."""
        ...


class SamplesAhead(Protocol):
    """A sampler whose tokens and verdicts can be used on the device before the host reads them."""

    def sample_ahead(self, p: Probs, rng: WindowRNG) -> PendingTokens | None:
        """As `mmspec.sampling.sampler.Sampler.sample`; None if only that can sample from `p`."""
        ...

    def verify_ahead(self, p: Probs, draft: Draft, rule: Accept, rng: WindowRNG) -> PendingVerdict | None:
        """As `mmspec.sampling.sampler.Sampler.verify`; None if only that can verify windows of this kind."""
        ...


@dataclass(frozen=True)
class Ahead:
    """The parts of a decode that can go ahead of the host.

    Attributes:
        target: The model.
        sampler: Samples and verifies.
        drafter: Drafts and observes.
    """

    target: ReadsAhead
    sampler: SamplesAhead
    drafter: DraftsAhead


def parts_ahead(target: object, drafter: object, sampler: object, state: BatchState) -> Ahead | None:
    """The parts of a decode, if they can go ahead of the host; what ends a row must come with its tokens.

    Args:
        target: The model.
        state: The batch.
    """
    layout = state.layout
    if state.device.type == "cpu" or not state.ops.by_kernels:
        return None
    # The columns that end a row are found on the host, which gets them with their counts.
    if layout.kind == "latents" or layout.stops is not None or (layout.ends is not None and layout.kind == "tokens"):
        return None
    if not (reads_ahead(target) and provides(sampler, "sample_ahead", "verify_ahead")):
        return None
    if not (provides(drafter, "drafts_ahead", "draft_ahead") and cast(DraftsAhead, drafter).drafts_ahead):
        return None
    return Ahead(cast(ReadsAhead, target), cast(SamplesAhead, sampler), cast(DraftsAhead, drafter))
