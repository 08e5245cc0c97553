"""Steps a batch until every row is finished.

A call of a model is a request, which `mmspec.batching.call` decodes. A batch alone is for those that measure the loop
or test a distribution: their rows are samples of a target, tens of thousands at a time, and belong to no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.stats import Meter, Stats


@dataclass(frozen=True)
class Decoded:
    """What was decoded.

    Attributes:
        tokens: [B, N, *cell], padding after a row's end.
        stats: The statistics of the run.
    """

    tokens: Tensor
    stats: Stats


class SteppedBatch(Protocol):
    """A batch that is decoded step by step.

    Attributes:
        state: Its rows and their tokens.
        meter: Counts calls, tokens and seconds.
    """

    state: BatchState
    meter: Meter

    def start(self) -> bool:
        """Reads the prompts and gives each row its first token; returns whether any row is running."""
        ...

    def step(self) -> bool:
        """Decodes more of each row; returns whether any row is running."""
        ...

    def stats(self) -> Stats:
        """The statistics so far."""
        ...


def step_to_end(batch: SteppedBatch) -> None:
    """Steps a batch, from its prompts on, until every row is finished."""
    with torch.inference_mode():
        running = batch.start()
        while running:
            running = batch.step()
    batch.meter.clock.lap("other")


def decode_to_end(batch: SteppedBatch) -> Decoded:
    """What a batch gives that is stepped to its end, in memory of its own."""
    step_to_end(batch)
    return Decoded(batch.state.result().clone(), batch.stats())
