"""A masked process on a model whose joint distribution is in a table."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mmspec.decoding.stats import Stats
from mmspec.decoding.to_end import decode_to_end
from mmspec.masked.loop import Ints, MaskedBatch
from mmspec.sampling.rng import CounterRNG

N, V = 4, 3
ROWS, LIMIT = 6000, 0.06


class TableProcess:
    """Fills places at random, `N / steps` in each step, from the exact conditional distributions of a table.

    Args:
        seeds: One per row.
        steps: The number of steps.
        confidence: Tokens with a larger probability are kept beyond the schedule.
        sharp: Factor of the logarithms of the table.
    """

    def __init__(self, seeds: range, steps: int, confidence: float = 1.0, sharp: float = 2.0) -> None:
        self.steps, self.seeds, self._confidence = steps, seeds, confidence
        self.joint = (torch.randn((V,) * N, generator=torch.Generator().manual_seed(2)) * sharp).flatten().softmax(0)
        self._sequences = torch.cartesian_prod(*[torch.arange(V)] * N)
        self._order = CounterRNG(seeds, torch.device("cpu")).uniforms(np.tile(np.arange(N), (len(seeds), 1)), 10**6)[0]

    def start(self) -> Tensor:
        return torch.full((len(self.seeds), N), V)

    def missing(self, states: Tensor) -> Tensor:
        return states == V

    def logits(self, rows: Ints, states: Tensor, steps: Ints) -> Tensor:
        fits = ((states[:, None] == self._sequences) | (states[:, None] == V)).all(-1) * self.joint  # [R, V ** N]
        return torch.stack([fits @ (self._sequences == v).float() for v in range(V)], dim=-1).log()

    def advance(self, rows: Ints, states: Tensor, logits: Tensor, steps: Ints) -> Tensor:
        rng = CounterRNG([self.seeds[int(row)] for row in rows], torch.device("cpu"))
        noise = rng.gumbel(steps[:, None] * N + np.arange(N), V)
        token = (logits + noise).argmax(-1)
        chance = logits.softmax(-1).gather(-1, token[..., None])[..., 0]
        known = self._order[rows].argsort(1).argsort(1) < torch.from_numpy((steps + 1) * N // self.steps)[:, None]
        known |= chance > self._confidence
        return torch.where((states == V) & known, token, states)


def decode(process: TableProcess, ahead: int = 1) -> tuple[Tensor, Stats]:
    batch = MaskedBatch(process, ahead, process.seeds)
    decode_to_end(batch)
    return batch.state.result(), batch.stats()


def distance(tokens: Tensor, process: TableProcess) -> float:
    """The total variation between the samples and the table."""
    index = (tokens * V ** torch.arange(N - 1, -1, -1)).sum(1)
    return float((index.bincount(minlength=V**N) / len(tokens) - process.joint).abs().sum() / 2)
