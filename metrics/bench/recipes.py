"""The cost of several recipes in one run, compared with plain decoding of the same prompts and seeds.

Definitions:

- **seconds** are wall-clock time of the whole call, from prompts to images.
- **speed-up** is a recipe's tokens per second over plain's within one repeat; the median over repeats, and both ends;
  one repeat has no spread.
- **tokens per call** is per row: plain decoding is 1.00 at every batch size.
- **loop overhead** is the time spent outside the target over the time spent inside: (total - target) / target.
- **bits per token** is the mean entropy of the target distribution of each emitted token, and **NLL** minus the
  logarithm of the probability that it gives the token: equal in expectation if drafts are verified exactly.
- **quality** is the score of the outputs; it, bits and NLL are measured in a pass that is not timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any

from mmspec.decoding.stats import Stats
from mmspec.metrics.bench.pipe import Pipe
from mmspec.recipes import Recipe, parse
from mmspec.testing.exactness import Verdict

BASELINE = "plain"

Score = Callable[[Any, Sequence[str]], float]
"""(output of a call, its prompts) -> mean quality, at most 1."""


@dataclass(frozen=True)
class SamplingOverrides:
    """Sampling parameters of the call; None is the model's default, and is not passed to the pipeline."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    guidance_scale: float | None = None
    min_p: float | None = None
    typical_p: float | None = None

    def given(self) -> dict[str, Any]:
        """Those that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Spread:
    """The median of several values, with the smallest and the largest; a single value has no spread."""

    median: float
    low: float | None
    high: float | None

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        several = len(values) > 1
        return Spread(median(values), min(values) if several else None, max(values) if several else None)

    def text(self, digits: int) -> str:
        """As `1.85 [1.80, 1.91]`, or `1.85 (once)` of a single value."""
        if self.low is None or self.high is None:
            return f"{self.median:.{digits}f} (once)"
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


@dataclass(frozen=True)
class BenchRun:
    """One pass of one recipe over all prompts.

    Attributes:
        recipe: Its name with its knobs.
        batch: Rows per call.
        repeat: Number of the pass, from 0.
        seconds: Wall-clock time of the pipeline's calls.
        generation: Seconds of it spent in decoding.
        parts: Seconds of decoding by part.
        tokens: Emitted tokens.
        nfe: Batched target calls.
        tokens_per_call: Per row.
        tv_bound: The bound that a relaxed rule reports, per token.
        window: Tokens of the widest window; 0 if unknown.
    """

    recipe: str
    batch: int
    repeat: int
    seconds: float
    generation: float
    parts: dict[str, float]
    tokens: int
    nfe: int
    tokens_per_call: float
    tv_bound: float
    window: int


@dataclass(frozen=True)
class BenchRow:
    """A recipe at one batch size.

    Attributes:
        recipe: Its name with its knobs.
        batch: Rows per call.
        exact: Whether it claims to keep the target distribution.
        gate: Whether it passed the exactness check; None for a relaxed recipe.
        tokens_per_call: Per row, the mean over repeats.
        tv_bound: The bound that a relaxed rule reports, per token: see `mmspec.decoding.stats.Stats`.
        nfe: Batched target calls per call of the pipeline.
        seconds: Per call of the pipeline.
        parts: Seconds by part, per call of the pipeline.
        speedup: None if the recipe claims to be exact and failed the check.
        bits_per_token: None if the pipeline does not measure it.
        nll: None if the pipeline does not measure it.
        quality: None without a score.
    """

    recipe: str
    batch: int
    exact: bool
    gate: bool | None
    tokens_per_call: float
    tv_bound: float
    nfe: float
    seconds: Spread
    parts: dict[str, float]
    loop_overhead: float
    speedup: Spread | None
    bits_per_token: float | None
    nll: float | None = None
    quality: float | None = None


@dataclass(frozen=True)
class BenchReport:
    """The results of a benchmark: one row per recipe and batch size, and the runs that they are computed from."""

    rows: list[BenchRow]
    runs: list[BenchRun]


def bench(
    pipe: Pipe,
    prompts: Sequence[str],
    recipes: Sequence[Recipe],
    *,
    gate: Callable[[Recipe], Verdict],
    batches: Sequence[int] = (1,),
    repeats: int = 3,
    seed: int = 0,
    overrides: SamplingOverrides = SamplingOverrides(),
    score: Score | None = None,
    on_run: Callable[[Recipe, int], None] | None = None,
) -> BenchReport:
    """Runs plain decoding and every recipe over all prompts, `repeats` times at each batch size.

    Within a repeat the recipes take turns on each group of prompts, in rotating order and with the same seeds, so that
    a machine that speeds up or slows down does so for all of them. A pass that is not timed comes before those of each
    batch size: it warms up, and entropy, NLL and quality are measured on it.

    Args:
        pipe: Generates images or audio.
        prompts: The texts.
        recipes: Compared with plain decoding.
        gate: The exactness check, called once for every recipe that claims to be exact; a recipe that fails it gets no
            speed-up.
        batches: Rows per call. A last group that is too small is filled up with the first prompts.
        repeats: Timed passes over the prompts.
        seed: Of the first call; later groups get later seeds.
        overrides: Sampling parameters.
        score: Mean quality of a call's outputs.
        on_run: Called before every generation with the recipe and the batch size.
    """
    chosen = _with_baseline(recipes)
    verdicts = {str(recipe): gate(recipe).ok for recipe in chosen if recipe.exact}
    report = BenchReport([], [])

    def generate(recipe: Recipe, group: list[str], first_seed: int, measure_entropy: bool) -> tuple[float, Any]:
        if on_run is not None:
            on_run(recipe, len(group))
        start = time.perf_counter()
        out = pipe(group, recipe=recipe, seed=first_seed, measure_entropy=measure_entropy, **overrides.given())
        return time.perf_counter() - start, out

    for batch in batches:
        groups = group_prompts(prompts, batch)
        seeds = [seed + batch * i for i in range(len(groups) * repeats)]
        qualities = {str(recipe): _Untimed() for recipe in chosen}
        for i, group in enumerate(groups):
            for recipe in chosen:
                out = generate(recipe, group, seeds[i], True)[1]
                qualities[str(recipe)].add(out.stats, None if score is None else score(out, group))
        runs: list[BenchRun] = []
        for repeat in range(repeats):
            passes: dict[str, list[tuple[float, Stats]]] = {str(recipe): [] for recipe in chosen}
            for i, group in enumerate(groups):
                turn = (repeat * len(groups) + i) % len(chosen)
                for recipe in chosen[turn:] + chosen[:turn]:
                    seconds, out = generate(recipe, group, seeds[repeat * len(groups) + i], False)
                    passes[str(recipe)].append((seconds, out.stats))
            runs += [_run(name, batch, repeat, calls) for name, calls in passes.items()]
        report.runs.extend(runs)
        report.rows.extend(
            _row(recipe, batch, len(groups), runs, verdicts.get(str(recipe)), qualities[str(recipe)])
            for recipe in chosen
        )
    return report


def generations(prompts: int, recipes: Sequence[Recipe], batches: Sequence[int], repeats: int) -> int:
    """Number of calls of the pipeline that `bench` makes for a number of prompts, timed or not."""
    return len(_with_baseline(recipes)) * sum(-(-prompts // batch) * (repeats + 1) for batch in batches)


def group_prompts(prompts: Sequence[str], batch: int) -> list[list[str]]:
    """Groups of exactly `batch` prompts; the last one is filled up with the first prompts."""
    count = -(-len(prompts) // batch)
    filled = [prompts[i % len(prompts)] for i in range(count * batch)]
    return [filled[i : i + batch] for i in range(0, len(filled), batch)]


def _with_baseline(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes without duplicates, plain decoding first."""
    baseline = parse(BASELINE)
    return list({str(recipe): recipe for recipe in [baseline, *recipes]}.values())


def _run(name: str, batch: int, repeat: int, calls: Sequence[tuple[float, Stats]]) -> BenchRun:
    stats = [stat for _, stat in calls]
    return BenchRun(
        recipe=name,
        batch=batch,
        repeat=repeat,
        seconds=sum(seconds for seconds, _ in calls),
        generation=sum(stat.seconds for stat in stats),
        parts={part: sum(stat.seconds_by_part[part] for stat in stats) for part in stats[0].seconds_by_part},
        tokens=sum(stat.tokens for stat in stats),
        nfe=sum(stat.target_calls for stat in stats),
        tokens_per_call=sum(stat.tokens for stat in stats) / sum(stat.tokens / stat.tokens_per_call for stat in stats),
        tv_bound=sum(stat.tv_bound * stat.tokens for stat in stats) / sum(stat.tokens for stat in stats),
        window=stats[0].window,
    )


def _row(
    recipe: Recipe, batch: int, groups: int, runs: Sequence[BenchRun], gate: bool | None, found: _Untimed
) -> BenchRow:
    mine = [run for run in runs if run.recipe == str(recipe)]
    plain = [run for run in runs if run.recipe == BASELINE]
    ratios = [(a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in zip(mine, plain, strict=True)]
    target = sum(run.parts["target"] for run in mine)
    return BenchRow(
        recipe=str(recipe),
        batch=batch,
        exact=recipe.exact,
        gate=gate,
        tokens_per_call=fmean(run.tokens_per_call for run in mine),
        tv_bound=fmean(run.tv_bound for run in mine),
        nfe=fmean(run.nfe for run in mine) / groups,
        seconds=Spread.of([run.seconds / groups for run in mine]),
        parts={part: fmean(run.parts[part] for run in mine) / groups for part in mine[0].parts},
        loop_overhead=(sum(run.generation for run in mine) - target) / target,
        speedup=None if gate is False else Spread.of(ratios),
        bits_per_token=_mean(found.bits),
        nll=_mean(found.nll),
        quality=_mean(found.scores),
    )


@dataclass
class _Untimed:
    """Measurements of the pass that is not timed, call by call."""

    bits: list[float | None] = field(default_factory=list)
    nll: list[float | None] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)

    def add(self, stats: Stats, score: float | None) -> None:
        self.bits.append(stats.entropy)
        self.nll.append(stats.nll)
        self.scores.append(score)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
