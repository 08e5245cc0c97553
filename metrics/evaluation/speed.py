"""The cost of a recipe's samples, compared with plain decoding of the same prompts and seeds in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.bootstrap import Index, bootstrap
from mmspec.metrics.estimate import Interval
from mmspec.metrics.evaluation.journal import SampleRecord
from mmspec.metrics.values import Count, Quantity, Share, Width

SHOWN = 4096  # positions whose acceptance rate is reported


@dataclass(frozen=True)
class Speed:
    """The speed of one recipe.

    Attributes:
        samples: Number of samples timed.
        nfe: Target calls per sample.
        tokens_per_call: With its 95 % interval over prompts, or seeds of a single one; plain decoding has 1.00.
        speedup: Tokens per second over plain's, all samples together, with the 95 % interval over calls, of width 0
            where one call made all samples: there is none. None if a recipe that claims to be exact failed the
            exactness check.
        seconds: Mean seconds per sample.
        p50: Median of the seconds of a call.
        p95: 95th percentile of the seconds of a call.
        first: Median of the seconds until a call's first tokens, or first chunk for audio that streams.
        parts: Mean seconds by part.
        real_time: Seconds of computing per second of audio; None for images.
        peak_memory: Bytes, the maximum; on the CPU it is that of the whole process and does not differ by recipe.
        tv_bound: The bound that a relaxed rule reports, per token; see `mmspec.decoding.stats.Stats`.
        acceptance: Acceptance rate by slot of the window, the mean over samples; None where no draft was tested.
        gains: Number of target calls that emitted 0, 1, 2, ... tokens of a sample; empty if the pipeline does not
            report them.
        accepted_at: By position, the share of samples whose token was an accepted draft and not a resampled one; the
            first 4,096 positions.
        grid: Tokens per row of an image; None if positions are along time.
    """

    samples: Count
    nfe: Quantity
    tokens_per_call: Interval
    speedup: Interval | None
    seconds: Quantity
    p50: Quantity
    p95: Quantity
    first: Quantity
    parts: dict[str, Quantity]
    real_time: Quantity | None
    peak_memory: Count
    tv_bound: Quantity
    acceptance: list[Share | None]
    gains: list[Count]
    accepted_at: list[Share]
    grid: Width | None


def speed_of(mine: Sequence[SampleRecord], plain: Sequence[SampleRecord], gate: bool | None, batch: int = 1) -> Speed:
    """The speed of a recipe's samples, paired one by one with plain's.

    Args:
        mine: The recipe's samples.
        plain: The samples of plain decoding, of the same prompts and seeds.
        gate: Whether a recipe that claims to be exact passed its check; None if it makes no such claim.
        batch: Number of consecutive samples that shared a call, and are resampled together.

    Raises:
        ArgumentError: If the samples do not pair, there are fewer than 2, or one emitted no token in no time.
    """
    if [(s.prompt, s.seed) for s in mine] != [(s.prompt, s.seed) for s in plain]:
        raise ArgumentError("the samples of a recipe and of plain decoding are not of the same prompts and seeds")
    for sample in (*mine, *plain):
        if not sample.tokens or min(sample.calls, sample.seconds) < 1e-12:  # of less, ratios would overflow
            raise ArgumentError(
                f"sample '{sample.file}' has {sample.tokens} tokens, {sample.calls:g} target calls and "
                f"{sample.seconds:g} s; its speed is not defined: delete the file and run again"
            )
    tokens, calls = np.array([(s.tokens, s.calls) for s in mine], dtype=np.float64).T
    seconds, base_seconds = (np.array([s.seconds for s in samples]) for samples in (mine, plain))
    base_tokens = np.array([s.tokens for s in plain], dtype=np.float64)

    def log_ratio(index: Index) -> float:
        rate = tokens[index].sum() / seconds[index].sum()
        return float(np.log(rate / (base_tokens[index].sum() / base_seconds[index].sum())))

    def per_call(index: Index) -> float:
        return float(tokens[index].sum() / calls[index].sum())

    groups = [i // batch for i in range(len(mine))]  # one call is one observation of time
    prompts = [s.prompt for s in mine]
    by_prompt = prompts if 1 < len(set(prompts)) < len(prompts) else None
    p50, p95 = np.quantile([s.latency for s in mine], [0.5, 0.95])
    lengths = [s.length for s in mine if s.length is not None]
    grids = {s.grid for s in mine}
    speedup = None
    if gate is not False:
        # In the logarithm of the ratio: with few calls, an interval of the ratio itself would reach below 0.
        once = Interval(*[log_ratio(np.arange(len(mine)))] * 3)
        found = once if len(mine) <= batch else bootstrap(log_ratio, len(mine), groups=groups)
        speedup = Interval(*(float(np.exp(v)) for v in (found.value, found.low, found.high)))
    return Speed(
        samples=len(mine),
        nfe=float(calls.mean()),
        tokens_per_call=bootstrap(per_call, len(mine), groups=by_prompt),
        speedup=speedup,
        seconds=float(seconds.mean()),
        p50=float(p50),
        p95=float(p95),
        first=float(np.median([s.first for s in mine])),
        parts={part: float(np.mean([s.parts.get(part, 0.0) for s in mine])) for part in mine[0].parts},
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
    """From the tokens per call of each sample: at each position, the share whose token was not the last of its call."""
    length = min(max((sum(row) for row in gains), default=0), SHOWN)
    accepted, present = np.zeros(length), np.zeros(length)
    for row in filter(None, gains):  # empty where the pipeline did not report them
        last = np.cumsum(row) - 1
        count = min(sum(row), length)
        present[:count] += 1
        accepted[:count] += 1
        accepted[last[last < length]] -= 1
    return [round(float(share), 4) for share in accepted / np.maximum(present, 1)]
