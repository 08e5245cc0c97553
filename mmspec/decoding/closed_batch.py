"""Batches of models whose steps are their own: all rows are in step, and no row joins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.step import UNWATCHED, Watch
from mmspec.decoding.window_policy import WindowPolicy


class ClosedBatch(ABC):
    """A batch that no row joins; a `mmspec.batching.request.DecodingBatch`. A step is one target call.

    Args:
        seeds: One per row.
        layout: The sequences to generate.
        device: Of the tokens.
        watch: What to show of the decoding.

    Attributes:
        state: Its rows and their tokens.
        meter: Counts calls, tokens and seconds.
        parts: None that rows could join.
        draft_calls: Calls of a draft model.
        cache_bytes: Bytes of the KV caches at the end, as far as known.
    """

    def __init__(self, seeds: Sequence[int], layout: Layout, device: torch.device, watch: Watch = UNWATCHED) -> None:
        # A step may write as many tokens after a row's end as a row has.
        self.state = BatchState(seeds, layout, layout.length, device)
        self.meter = Meter(device, len(seeds))
        self.draft_calls = self.cache_bytes = 0
        self.parts = ()
        self._on_step = watch.on_step

    @abstractmethod
    def step(self) -> bool:
        """Makes one target call; returns whether any row is running."""

    def start(self) -> bool:
        """Makes the first call; returns whether any row is running."""
        return self.step()

    def stats(self) -> Stats:
        """The statistics so far."""
        return self.meter.stats(self.draft_calls)

    def use(self, policy: WindowPolicy | None = None, most_steps: int | None = None) -> None:  # noqa: B027 (no windows)
        """Does nothing."""

    def drop_finished(self, at_once: bool = False) -> None:  # noqa: B027 (rows are in step)
        """Does nothing."""
