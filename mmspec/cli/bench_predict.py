"""`mmspec bench predict`: which recipe and window a model wants on this machine, and how much faster it becomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from re import sub
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec import limits
from mmspec.cli.bench import Prompts, split_recipes
from mmspec.cli.builtin_prompts import builtin_prompts
from mmspec.cli.model_options import DType, Weights
from mmspec.cli.options import (
    Device,
    Drafter,
    GuidanceScale,
    Json,
    MinP,
    Model,
    Seed,
    Temperature,
    TopK,
    TopP,
    TypicalP,
)
from mmspec.cli.pipelines import load_pipeline
from mmspec.cli.run_progress import EVERY, LogEvery, RunProgress
from mmspec.errors import ArgumentError
from mmspec.recipes import default_recipe, parse

if TYPE_CHECKING:
    from mmspec.metrics.bench.predict import Prediction, Report
    from mmspec.metrics.estimate import Interval

SCHEMA_VERSION = 1
BUSY = 0.9  # of the cost of a narrower window, below which a wider one shows that the clock is not to be trusted


def bench_predict(
    model: Model = "shapes",
    recipes: Annotated[str, typer.Option(help="Separated by commas; the model's own is added.")] = "scd,sjd",
    samples: Annotated[int, typer.Option(min=2, help="Samples per recipe and window; more narrow the intervals.")] = 24,
    batch: Annotated[int, typer.Option(min=1, help="Samples per call, but for those that are timed one by one.")] = 8,
    prompts: Prompts = "builtin",
    prompt: Annotated[
        str | None,
        typer.Option(show_default=False, help="One prompt for all samples, a text or the number of a class."),
    ] = None,
    seed: Seed = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    guidance_scale: GuidanceScale = None,
    drafter: Drafter = None,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
    log_every: LogEvery = EVERY,
    as_json: Json = False,
) -> None:
    """Predict how much faster recipes make a model on this machine, from a few samples, and say which one to use.

    Recipes are run at windows of 4, 16 and 64 tokens, those between are interpolated, and each window is timed at batch
    1. The line at the end names the fastest recipe, or none where drafting does not pay.
    """
    names = split_recipes(recipes)
    limits.RECIPES.check("--recipes", len(names))
    limits.OUTPUTS.check("--samples", samples)
    limits.OUTPUTS.check("--batch", batch)
    chosen = [recipe for recipe in map(parse, names) if recipe.info.drafts]
    for text in names:
        if "window=" in text:
            raise ArgumentError(f"--recipes {text} sets a window, which predict chooses; leave it out")
    if not chosen:
        raise ArgumentError(f"--recipes {recipes} has no drafts; plain decoding is measured in any case")
    chosen = list({str(recipe): recipe for recipe in chosen}.values())

    from mmspec.metrics.bench.predict import calls, predict
    from mmspec.metrics.bench.recipes import SamplingOverrides
    from mmspec.metrics.prompts import read_prompts

    pipe = load_pipeline(model, device, drafter, dtype)
    if prompt is None:
        texts = read_prompts(prompts, None, builtin_prompts(model, pipe))
        texts = [texts[i * max(len(texts), samples) // samples % len(texts)] for i in range(samples)]  # from all of it
    else:
        texts = [prompt] * samples
    own = default_recipe(pipe)
    if own.name not in ("plain", *(recipe.name for recipe in chosen)):
        chosen.append(own)
    sampling = SamplingOverrides(temperature, top_k, top_p, guidance_scale, min_p, typical_p).given()
    with RunProgress(calls(chosen, samples, batch), "calls", quiet=as_json, every=log_every) as progress:
        report = predict(
            pipe,
            texts,
            chosen,
            batch=batch,
            seed=seed,
            sampling=sampling,
            on_run=lambda name: progress.update(note=name),
        )
    if as_json:
        print(json.dumps({"schema_version": SCHEMA_VERSION, "model": model, "sampling": sampling, **asdict(report)}))
    else:
        print(page(report))


def page(report: Report) -> str:
    """The report as text: what was measured, a table of predictions, and what to use."""
    bits = "" if report.bits_per_token is None else f"{report.bits_per_token:.2f} bits per token, "
    plain = f"{1000 * report.plain_seconds:.2f} ms per token by plain decoding"
    lines = [f"measured: {report.samples} samples of {report.tokens:.0f} tokens, {bits}{plain}"]
    for recipe, shares in report.acceptance.items():
        listed = ", ".join(f"{slot}: {share:.2f}" for slot, share in telling(shares))
        lines.append(f"measured: drafts that {recipe} accepts, by slot: {listed}")
    cells: list[tuple[str, ...]] = [("recipe", "tokens per call", "which is", "cost of a call", "speed-up, predicted")]
    for row in report.rows:
        which = "measured" if row.measured else "predicted"
        cells.append((row.recipe, _text(row.tokens_per_call), which, f"{row.cost:.2f}", _text(row.speedup)))
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    cells.insert(1, tuple("-" * width for width in widths))
    lines += ["", *(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells), ""]
    if any(wide.cost < BUSY * narrow.cost for narrow, wide in pairwise(report.rows) if _name(narrow) == _name(wide)):
        lines.append("note: a wider window took less time, so other work runs on this machine; costs may be far off")
    lines += [f"not possible: {recipe}: {reason}" for recipe, reason in report.refused.items()]
    best = report.best
    if best is None:
        return "\n".join([*lines, "do not: no recipe is predicted to be faster than plain decoding here, at batch 1"])
    faster = f"predicted {_text(best.speedup)} times as fast as plain decoding here, at batch 1"
    return "\n".join([*lines, f"use {best.recipe}: {faster}"])


def telling(shares: Sequence[float | None], first: int = 4, later: int = 2) -> list[tuple[int, float]]:
    """The acceptance of the first slots, and of the later ones where it is lowest, such as one line below."""
    known = [(slot, share) for slot, share in enumerate(shares, 1) if share is not None]
    lowest = sorted(known[first:], key=lambda each: each[1])[:later]
    return known[:first] + sorted(lowest)


def _name(row: Prediction) -> str:
    return sub(r"window=\d+,?", "", row.recipe).rstrip(":,")


def _text(interval: Interval) -> str:
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
