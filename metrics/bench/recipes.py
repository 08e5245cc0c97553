"""Recipes side by side: what each costs, in one run, against plain decoding of the same prompts and seeds.

The definitions, once:

- **seconds** are wall-clock around the whole call, from prompts to images.
- **speed-up** is a recipe's tokens per second over plain's within one repeat; the median over repeats, and both ends.
- **tokens per call** is per row: plain decoding is 1.00 at every batch size.
- **loop overhead** is what generation spends outside the target, over what it spends inside: (total - target) / target.
- **bits per token** is the mean entropy of the distribution that each emitted token was drawn from, and **NLL** minus the
  logarithm of what the target distribution gives it: alike where drafts are verified exactly, apart where they are not.
- **quality** is what a score given says of the outputs; it, bits and NLL are of a pass that is not timed.
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
from mmspec.testing.exactness import ExactnessResult
from mmspec.testing.latents import LatentExactnessResult

BASELINE = "plain"

Score = Callable[[Any, Sequence[str]], float]
"""(what a call gave, its prompts) -> how good it is on average, 1 at best."""


@dataclass(frozen=True)
class Overrides:
    """How tokens are drawn; None is the model's default."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    guidance_scale: float | None = None


@dataclass(frozen=True)
class Spread:
    """A median and the smallest and largest value it was taken from."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(median(values), min(values), max(values))


@dataclass(frozen=True)
class Run:
    """One pass of one recipe over all prompts. Times in seconds; `nfe` counts batched target calls."""

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


@dataclass(frozen=True)
class Row:
    """A recipe at one batch size. `speedup` is None where the recipe claims to be exact and its check failed.

    `tv_bound` is what a relaxed rule says of itself, per token: see `mmspec.decoding.stats.Stats`.
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
class Report:
    """Everything a benchmark found: one row per recipe and batch size, and the runs they were computed from."""

    rows: list[Row]
    runs: list[Run]


def bench(
    pipe: Pipe,
    prompts: Sequence[str],
    recipes: Sequence[Recipe],
    *,
    gate: Callable[[Recipe], ExactnessResult | LatentExactnessResult],
    batches: Sequence[int] = (1,),
    repeats: int = 3,
    seed: int = 0,
    overrides: Overrides = Overrides(),
    score: Score | None = None,
    on_run: Callable[[Recipe, int], None] | None = None,
) -> Report:
    """Run every recipe over all prompts, `repeats` times at each batch size, and plain decoding with them.

    Within a repeat the recipes take turns on each group of prompts, in rotating order and with the same seeds, so that
    a machine that speeds up or slows down does so for all of them. A pass that is not timed goes before those of each
    batch size: it warms up, and is what entropy, NLL and quality are measured on.

    Args:
        gate: Asked once for every recipe that says it is exact; without its yes no speed-up is reported.
        batches: Rows per call. A last group that is too small is filled up with the first prompts.
        score: How good a call's outputs are.
        on_run: Called before every generation with the recipe and the batch size.
    """
    chosen = _with_baseline(recipes)
    verdicts = {str(recipe): gate(recipe).ok for recipe in chosen if recipe.exact}
    report = Report([], [])

    def generate(recipe: Recipe, group: list[str], first_seed: int, measure_entropy: bool) -> tuple[float, Any]:
        if on_run is not None:
            on_run(recipe, len(group))
        start = time.perf_counter()
        out = pipe(group, recipe=recipe, seed=first_seed, measure_entropy=measure_entropy, **asdict(overrides))
        return time.perf_counter() - start, out

    for batch in batches:
        groups = group_prompts(prompts, batch)
        seeds = [seed + batch * i for i in range(len(groups) * repeats)]
        qualities = {str(recipe): _Quality() for recipe in chosen}
        for i, group in enumerate(groups):
            for recipe in chosen:
                out = generate(recipe, group, seeds[i], True)[1]
                qualities[str(recipe)].add(out.stats, None if score is None else score(out, group))
        runs: list[Run] = []
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
    """How many times `bench` calls the pipeline for so many prompts, in passes timed and not."""
    return len(_with_baseline(recipes)) * sum(-(-prompts // batch) * (repeats + 1) for batch in batches)


def group_prompts(prompts: Sequence[str], batch: int) -> list[list[str]]:
    """Groups of exactly `batch` prompts; the last one is filled up from the front."""
    count = -(-len(prompts) // batch)
    filled = [prompts[i % len(prompts)] for i in range(count * batch)]
    return [filled[i : i + batch] for i in range(0, len(filled), batch)]


def _with_baseline(recipes: Sequence[Recipe]) -> list[Recipe]:
    """The recipes without repetitions, plain decoding first."""
    baseline = parse(BASELINE)
    return list({str(recipe): recipe for recipe in [baseline, *recipes]}.values())


def _run(name: str, batch: int, repeat: int, calls: Sequence[tuple[float, Stats]]) -> Run:
    stats = [stat for _, stat in calls]
    return Run(
        recipe=name,
        batch=batch,
        repeat=repeat,
        seconds=sum(seconds for seconds, _ in calls),
        generation=sum(stat.seconds for stat in stats),
        parts={part: sum(stat.seconds_by_part[part] for stat in stats) for part in stats[0].seconds_by_part},
        tokens=sum(stat.tokens for stat in stats),
        nfe=sum(stat.nfe for stat in stats),
        tokens_per_call=sum(stat.tokens for stat in stats) / sum(stat.tokens / stat.tokens_per_call for stat in stats),
        tv_bound=sum(stat.tv_bound * stat.tokens for stat in stats) / sum(stat.tokens for stat in stats),
    )


def _row(recipe: Recipe, batch: int, groups: int, runs: Sequence[Run], gate: bool | None, found: _Quality) -> Row:
    mine = [run for run in runs if run.recipe == str(recipe)]
    plain = [run for run in runs if run.recipe == BASELINE]
    ratios = [(a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in zip(mine, plain, strict=True)]
    target = sum(run.parts["target"] for run in mine)
    return Row(
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
class _Quality:
    """What the pass that is not timed found, call by call."""

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
