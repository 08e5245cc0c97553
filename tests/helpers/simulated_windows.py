"""A batch that decodes on a fake clock: what a window policy makes of costs and acceptance that are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2

import numpy as np
from numpy.typing import NDArray

from mmspec.decoding.window_policy import Committed, WindowPolicy

KEPT = 4  # as in `mmspec.decoding.loop`: rows are dropped once one in so many has finished


def committed(seconds: float, gain: float, calls: int = 1) -> Committed:
    """What `calls` calls of `seconds` each have committed in a row that has gained `gain` tokens per call."""
    return Committed(np.array([gain * calls]), gain * calls, seconds, calls)


@dataclass(frozen=True)
class Cost:
    """Seconds of a call, in those of one row's single step.

    Attributes:
        token: Seconds of each row's token in the call, over those of the rest: small where calls are memory-bound.
        drafts: Seconds of drafting, and of each drafted token.
        apart: What a single step costs more once rows stand at different positions, as a share.
    """

    token: float
    drafts: tuple[float, float]
    apart: float = 0.0

    def call(self, rows: int, width: int, apart: bool) -> float:
        """Seconds of one call with its drafts."""
        seconds = (1 + self.token * rows * width) / (1 + self.token)
        if width == 1:
            return seconds * (1 + self.apart * apart)
        # A draft network reads the rows as the model does.
        each = (1 + self.token * rows) / (1 + self.token)
        return seconds + each * (self.drafts[0] + self.drafts[1] * (width - 1))


@dataclass(frozen=True)
class Reused:
    """Drafts that each call refines, as in Jacobi decoding: better in wide windows, bad in the first call.

    With a chance of 0.4 and a factor of 0.79 a row gains 1.4, 2.0, 2.5, 3.3 and 4.2 tokens at widths of 2, 4, ... 32,
    and 1.3 in a first call, which is what `scd` does on the model of `examples/quality_vs_speed`.

    Attributes:
        chance: The probability that a draft is accepted, at a width of 2.
        factor: Of the probability that it is not, for each doubling of the width.
        first: Of the chance, in the first call after single steps or narrower windows.
    """

    chance: float
    factor: float = 0.79
    first: float = 0.55

    def at(self, width: int, before: int) -> float:
        """The chance at a width, after a call of the width `before`."""
        if before < width:
            return self.chance * self.first
        return 1 - (1 - self.chance) * self.factor ** (log2(width) - 1)


def simulate(
    policy: WindowPolicy, cost: Cost, chance: float | Reused, length: int, rows: int, rng: np.random.Generator
) -> float:
    """Seconds of a run of `rows` rows, over those of plain decoding, if each draft is accepted with `chance`.

    Follows `mmspec.decoding.loop.RunningBatch.step`. Every call takes up to 5 % more or less.
    """
    if begin := getattr(policy, "begin", None):
        begin(length, rows)
    lengths, seconds = np.ones(rows, dtype=np.int64), 0.0
    running = np.arange(rows)  # rows in the batch, some of which may have finished
    before = 1

    def noisy(seconds: float, calls: int) -> float:
        return seconds * float(np.mean(rng.uniform(0.95, 1.05, calls)))

    while (alive := running[lengths[running] < length]).size:
        whole = len(alive) == rows
        apart = len(set(lengths[alive].tolist())) > 1
        width = policy.choose() if whole else policy.settled()
        order = np.argsort(lengths[alive], kind="stable")
        calls = 1
        if width == 1:
            calls = min(policy.steps(), int(length - lengths[alive].min()))
            gained = np.full(len(alive), calls)
        else:
            accepted = chance.at(width, before) if isinstance(chance, Reused) else chance
            tested = rng.random((len(alive), width - 1)) < accepted
            gained = np.cumprod(tested, axis=1).sum(1) + 1
        together = width > 1 and whole and not apart and policy.together()
        alone, gained = gained, np.full(len(alive), gained.min()) if together else gained
        drafts = min(width - 1, int(gained[0])) if together else 0  # that are tested in each row
        tests = drafts * len(alive), int(np.minimum(alone - 1, drafts).sum())
        call = noisy(cost.call(len(running), width, apart), calls)
        fewest = lengths[alive].min()
        lengths[alive] = np.minimum(lengths[alive] + gained, length)
        seconds += call * calls
        before = width
        told = Committed(gained[order], lengths[alive].min() - fewest, call, calls, *tests, together)
        (policy.record if whole else policy.rest)(width, told)
        finished = lengths[running] >= length
        if finished.sum() * KEPT >= len(running):
            running = running[~finished]
    return seconds / (cost.call(rows, 1, False) * (length - 1))


def ratios(
    make: Callable[[], WindowPolicy],
    cost: Cost,
    chance: float | Reused,
    length: int,
    rows: int,
    seeds: range,
    runs: int = 3,
) -> NDArray[np.float64]:
    """Time over plain decoding's of some runs in a row on a new model, for each seed, float [seeds, runs]."""
    found = []
    for seed in seeds:
        policy, rng = make(), np.random.default_rng(seed)
        found.append([simulate(policy, cost, chance, length, rows, rng) for _ in range(runs)])
    return np.array(found)
