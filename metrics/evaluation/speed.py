"""What a recipe's samples cost, against plain decoding of the same prompts and seeds in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.bootstrap import Index, Interval, bootstrap
from mmspec.metrics.evaluation.journal import Sample

SHOWN = 4096  # positions of which it is told how often their token was an accepted draft


@dataclass(frozen=True)
class Speed:
    """Of one recipe.

    Attributes:
        samples: How many were timed.
        nfe: Target calls per sample.
        tokens_per_call: Plain decoding has 1.00, with its 95 % interval over samples.
        speedup: Tokens per second over plain's, all samples together, with the 95 % interval over calls; None where a
            recipe that says it is exact failed the check of that.
        seconds: Of a sample, the mean.
        p50: Of the seconds of a call.
        p95: Of the seconds of a call.
        first: The median of those until its first tokens, or of sound that streams its first chunk.
        parts: Mean seconds by part.
        real_time: Seconds of computing per second of sound; None for images.
        peak_memory: Bytes, the largest; on the CPU of the whole process, so that it does not tell recipes apart.
        tv_bound: What a relaxed rule says of itself, per token; see `mmspec.decoding.stats.Stats`.
        acceptance: By slot of the window, the mean over samples; None where none was tested.
        gains: How many target calls gave a sample 0, 1, 2, ... tokens; empty where the pipeline does not tell.
        accepted_at: By position, how often its token was an accepted draft, not a resampled one; the first 4,096.
        grid: Tokens per row of an image; None where positions are along time.
    """

    samples: int
    nfe: float
    tokens_per_call: Interval
    speedup: Interval | None
    seconds: float
    p50: float
    p95: float
    first: float
    parts: dict[str, float]
    real_time: float | None
    peak_memory: int
    tv_bound: float
    acceptance: list[float | None]
    gains: list[int]
    accepted_at: list[float]
    grid: int | None


def speed_of(mine: Sequence[Sample], plain: Sequence[Sample], gate: bool | None, batch: int = 1) -> Speed:
    """The account of samples, paired one by one with plain's.

    Args:
        gate: Whether a recipe that says it is exact passed its check; None when it does not say so.
        batch: So many neighbours were drawn in one call, and are resampled together.

    Raises:
        ArgumentError: When they are not of the same prompts and seeds, or fewer than 2.
    """
    if [(s.prompt, s.seed) for s in mine] != [(s.prompt, s.seed) for s in plain]:
        raise ArgumentError("the samples of a recipe and of plain decoding are not of the same prompts and seeds")
    tokens, calls = np.array([(s.tokens, s.calls) for s in mine], dtype=np.float64).T
    seconds, base_seconds = (np.array([s.seconds for s in samples]) for samples in (mine, plain))
    base_tokens = np.array([s.tokens for s in plain], dtype=np.float64)

    def log_ratio(index: Index) -> float:
        rate = tokens[index].sum() / seconds[index].sum()
        return float(np.log(rate / (base_tokens[index].sum() / base_seconds[index].sum())))

    def per_call(index: Index) -> float:
        return float(tokens[index].sum() / calls[index].sum())

    # One call is one observation of time, unless there is but one.
    groups = [i // batch for i in range(len(mine))] if len(mine) > batch else None
    p50, p95 = np.quantile([s.latency for s in mine], [0.5, 0.95])
    lengths = [s.length for s in mine if s.length is not None]
    grids = {s.grid for s in mine}
    speedup = None
    if gate is not False:
        # A ratio is even in its logarithm: of few calls, its own interval would reach below 0.
        found = bootstrap(log_ratio, len(mine), groups=groups)
        speedup = Interval(*(float(np.exp(v)) for v in (found.value, found.low, found.high)))
    return Speed(
        samples=len(mine),
        nfe=float(calls.mean()),
        tokens_per_call=bootstrap(per_call, len(mine)),
        speedup=speedup,
        seconds=float(seconds.mean()),
        p50=float(p50),
        p95=float(p95),
        first=float(np.median([s.first for s in mine])),
        parts={part: float(np.mean([s.parts[part] for s in mine])) for part in mine[0].parts},
        real_time=float(seconds.sum() / sum(lengths)) if len(lengths) == len(mine) and sum(lengths) > 0 else None,
        peak_memory=max(s.peak_memory for s in mine),
        tv_bound=float(sum(s.tv_bound * s.tokens for s in mine) / tokens.sum()),
        acceptance=_by_slot([s.acceptance for s in mine]),
        gains=np.bincount([gain for s in mine for gain in s.gains]).tolist() if any(s.gains for s in mine) else [],
        accepted_at=_by_position([s.gains for s in mine]),
        grid=grids.pop() if len(grids) == 1 else None,
    )


def _by_slot(rates: Sequence[Sequence[float | None]]) -> list[float | None]:
    slots = max(map(len, rates), default=0)
    columns = [[row[i] for row in rates if i < len(row)] for i in range(slots)]
    known = [[rate for rate in column if rate is not None] for column in columns]
    return [float(np.mean(column)) if column else None for column in known]


def _by_position(gains: Sequence[Sequence[int]]) -> list[float]:
    """Of what calls gave, the share of samples at each position whose token was not the last of its call."""
    length = min(max((sum(row) for row in gains), default=0), SHOWN)
    accepted, there = np.zeros(length), np.zeros(length)
    for row in filter(None, gains):  # of some calls it may not be known
        last = np.cumsum(row) - 1
        count = min(sum(row), length)
        there[:count] += 1
        accepted[:count] += 1
        accepted[last[last < length]] -= 1
    return [round(float(share), 4) for share in accepted / np.maximum(there, 1)]
