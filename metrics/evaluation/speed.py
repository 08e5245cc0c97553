"""What a recipe's samples cost, against plain decoding of the same prompts and seeds in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.evaluation.journal import Sample
from mmspec.metrics.interval import Index, Interval, bootstrap


@dataclass(frozen=True)
class Speed:
    """Of one recipe.

    - `samples`: how many were timed, one picture per call.
    - `nfe`: target calls per picture; `tokens_per_call`: plain decoding has 1.00.
    - `speedup`: tokens per second over plain's, all samples together, with the 95 % interval over prompts and seeds;
      None where a recipe that says it is exact failed the check of that.
    - `p50`, `p95`: of the seconds of a call; `parts`: mean seconds by part.
    - `peak_memory`: bytes, the largest; on the CPU of the whole process, so that it does not tell recipes apart.
    - `tv_bound`: what a relaxed rule says of itself, per token; see `mmspec.stats.Stats`.
    - `acceptance`: by slot of the window, the mean over samples; None where none was tested.
    """

    samples: int
    nfe: float
    tokens_per_call: float
    speedup: Interval | None
    p50: float
    p95: float
    parts: dict[str, float]
    peak_memory: int
    tv_bound: float
    acceptance: list[float | None]


def speed_of(mine: Sequence[Sample], plain: Sequence[Sample], gate: bool | None) -> Speed:
    """The account of samples, paired one by one with plain's.

    **Arguments:**

    - `gate`: whether a recipe that says it is exact passed its check; None when it does not say so.

    **Raises:** `ArgumentError` when they are not of the same prompts and seeds, or fewer than 2.
    """
    if [(s.prompt, s.seed) for s in mine] != [(s.prompt, s.seed) for s in plain]:
        raise ArgumentError("the samples of a recipe and of plain decoding are not of the same prompts and seeds")
    tokens = np.array([s.tokens for s in mine], dtype=np.float64)
    seconds, base_seconds = (np.array([s.seconds for s in samples]) for samples in (mine, plain))
    base_tokens = np.array([s.tokens for s in plain], dtype=np.float64)

    def ratio(index: Index) -> float:
        rate = tokens[index].sum() / seconds[index].sum()
        return float(rate / (base_tokens[index].sum() / base_seconds[index].sum()))

    p50, p95 = np.quantile(seconds, [0.5, 0.95])
    return Speed(
        samples=len(mine),
        nfe=float(np.mean([s.nfe for s in mine])),
        tokens_per_call=float(tokens.sum() / sum(s.row_calls for s in mine)),
        speedup=None if gate is False else bootstrap(ratio, len(mine)),
        p50=float(p50),
        p95=float(p95),
        parts={part: float(np.mean([s.parts[part] for s in mine])) for part in mine[0].parts},
        peak_memory=max(s.peak_memory for s in mine),
        tv_bound=float(sum(s.tv_bound * s.tokens for s in mine) / tokens.sum()),
        acceptance=_by_slot([s.acceptance for s in mine]),
    )


def _by_slot(rates: Sequence[Sequence[float | None]]) -> list[float | None]:
    slots = max(map(len, rates), default=0)
    columns = [[row[i] for row in rates if i < len(row)] for i in range(slots)]
    known = [[rate for rate in column if rate is not None] for column in columns]
    return [float(np.mean(column)) if column else None for column in known]
