"""`decode_to_end`: steps a batch until every row is finished."""

from __future__ import annotations

from typing import Protocol

import torch

from mmspec.decoding.stats import Meter


class SteppedBatch(Protocol):
    """A batch that is decoded step by step.

    Attributes:
        meter: Counts calls, tokens and seconds.
    """

    meter: Meter

    def start(self) -> bool:
        """Reads the prompts and gives each row its first token; returns whether any row is running."""
        ...

    def step(self) -> bool:
        """Decodes more of each row; returns whether any row is running."""
        ...


def decode_to_end(batch: SteppedBatch) -> None:
    """Decodes a batch, from its prompts on, until every row is finished."""
    with torch.inference_mode():
        running = batch.start()
        while running:
            running = batch.step()
    batch.meter.clock.lap("other")
