"""`mmspec bench image` and `mmspec bench speak`: recipes side by side in one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec import limits
from mmspec.cli.bench_steps import bench_steps
from mmspec.cli.builtin_prompts import builtin_prompts
from mmspec.cli.exactness_gate import gate_on
from mmspec.cli.limited import say_limit
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
from mmspec.cli.pipelines import load_audio_pipeline, load_image_generator, without_bars
from mmspec.cli.run_progress import EVERY, LogEvery, RunProgress
from mmspec.errors import ArgumentError
from mmspec.files import STDOUT, check_writable, replacing
from mmspec.recipes import Recipe, parse

if TYPE_CHECKING:
    from mmspec.metrics.bench.recipes import BenchReport, SamplingOverrides

SCHEMA_VERSION = 1


Recipes = Annotated[str, typer.Option(help="Separated by commas; a piece like a=b is a knob of the preceding recipe.")]
Batch = Annotated[str, typer.Option(help="Rows per call, separated by commas.")]
Prompts = Annotated[str, typer.Option(help="A text file with a prompt per line, or `builtin`.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Number of prompts to use, from the first.", show_default="all")]
Repeats = Annotated[int, typer.Option(min=1, help="Timed passes over the prompts.")]
RandomWeights = Annotated[bool, typer.Option("--random-weights", help="Time single calls of a model of size --config.")]
Config = Annotated[
    str, typer.Option(help="With --random-weights: llamagen-b, llamagen-l, llamagen-xl or llamagen-xxl.")
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", show_default=False, help="Write everything to this JSON file, or - for stdout."),
]


def bench_image(
    model: Model = "shapes",
    recipes: Recipes = "plain,draft,table,sjd,scd",
    batch: Batch = "1,8",
    prompts: Prompts = "builtin",
    limit: Limit = None,
    repeats: Repeats = 3,
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
    output: Output = None,
    log_every: LogEvery = EVERY,
    as_json: Json = False,
    random_weights: RandomWeights = False,
    config: Config = "llamagen-xl",
) -> None:
    """Time recipes against plain decoding of the same prompts and seeds, and print a table.

    A recipe that claims to be exact gets a speed-up only if it passes the exactness check. With random weights single
    target calls are timed instead, against the time that their bytes need.
    """
    if random_weights:
        if output == STDOUT:
            output, as_json = None, True
        return bench_steps(config, device, read_sizes(batch), repeats, output, as_json)
    if output == STDOUT:  # the record instead of the table, as with --json
        output, as_json = None, True
    chosen, sizes = _plan(recipes, batch, output)

    from mmspec.metrics.bench.recipes import SamplingOverrides
    from mmspec.metrics.prompts import read_prompts

    texts = read_prompts(prompts, limit)  # before the model is loaded, which takes longer
    pipe = load_image_generator(model, device, drafter, dtype=dtype)
    if prompts == "builtin":
        texts = list(builtin_prompts(model, pipe))[:limit]
    say_limit(limit, len(texts))
    score = attribute_score(model) if model in ("shapes", "scenes") else None
    overrides = SamplingOverrides(temperature, top_k, top_p, guidance_scale, min_p, typical_p)
    report, record = _measure(pipe, model, texts, chosen, sizes, repeats, seed, overrides, score, as_json, log_every)
    record["settings"] |= {"device": device, "drafter": drafter, "dtype": dtype.value}
    _write(report, record, output, as_json)


def bench_speak(
    model: Model = "spoken",
    recipes: Recipes = "plain,table:window=8,draft:window=4,recycle:window=4,scd:window=6,table+lantern:window=8",
    batch: Batch = "1,8",
    prompts: Prompts = "builtin",
    limit: Limit = None,
    repeats: Repeats = 3,
    seed: Seed = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    drafter: Drafter = None,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
    output: Output = None,
    log_every: LogEvery = EVERY,
    as_json: Json = False,
) -> None:
    """Time recipes against plain decoding of the same texts and seeds, and print two tables.

    The second table has the time until the first audio of a stream. Quality is the share of correctly transcribed
    words, for `spoken` only. A recipe that claims to be exact gets a speed-up only if it passes the exactness check.
    """
    if output == STDOUT:  # the record instead of the table, as with --json
        output, as_json = None, True
    chosen, sizes = _plan(recipes, batch, output)

    from mmspec.metrics.bench.latency import first_audio, latency_table
    from mmspec.metrics.bench.recipes import SamplingOverrides
    from mmspec.metrics.prompts import SPEECH, read_prompts

    texts = read_prompts(prompts, limit, SPEECH)
    say_limit(limit, len(texts))
    pipe = without_bars(load_audio_pipeline(model, device, dtype=dtype), drafter)
    score = word_accuracy() if model == "spoken" else None
    overrides = SamplingOverrides(temperature, top_k, top_p, None, min_p, typical_p)
    report, record = _measure(pipe, model, texts, chosen, sizes, repeats, seed, overrides, score, as_json, log_every)
    latencies = first_audio(pipe, texts, chosen, repeats=repeats, seed=seed, sampling=overrides.given())
    record["settings"] |= {"device": device, "drafter": drafter, "dtype": dtype.value}
    record["first_sound"] = [asdict(latency) for latency in latencies]
    _write(report, record, output, as_json)
    if not as_json:
        print(f"\n{latency_table(latencies)}")


def _plan(recipes: str, batch: str, output: Path | None) -> tuple[list[Recipe], list[int]]:
    """The recipes and batch sizes, checked before any work is done."""
    names = split_recipes(recipes)
    limits.RECIPES.check("--recipes", len(names))
    chosen = [parse(text) for text in names]
    sizes = read_sizes(batch)
    if output is not None:
        check_writable(output, "-o/--output")
    return chosen, sizes


def _measure(
    pipe: Any,
    model: str,
    texts: list[str],
    chosen: list[Recipe],
    sizes: list[int],
    repeats: int,
    seed: int,
    overrides: SamplingOverrides,
    score: Callable[[Any, Sequence[str]], float] | None,
    quiet: bool,
    log_every: float,
) -> tuple[BenchReport, dict[str, Any]]:
    """Runs the benchmark; returns its report, and the record with the settings and the environment."""
    from mmspec.metrics.bench.recipes import bench, generations
    from mmspec.metrics.environment import environment

    runs = generations(len(texts), chosen, sizes, repeats)
    with RunProgress(runs, "runs", quiet=quiet, every=log_every) as progress:
        report = bench(
            pipe,
            texts,
            chosen,
            gate=gate_on(pipe, texts[0], max(sizes)),
            batches=sizes,
            repeats=repeats,
            seed=seed,
            overrides=overrides,
            score=score,
            on_run=lambda recipe, size: progress.update(note=f"{recipe}, batch {size}"),
        )
    settings = {"model": model, "recipes": [str(recipe) for recipe in chosen], "batch": sizes, "prompts": texts}
    sampling = {name: pipe.config.get(name) for name in asdict(overrides)} | overrides.given()
    return report, {
        "schema_version": SCHEMA_VERSION,
        "settings": {**settings, "repeats": repeats, "seed": seed, **sampling},
        "environment": environment(),
        **asdict(report),
    }


def _write(report: BenchReport, record: dict[str, Any], output: Path | None, as_json: bool) -> None:
    """Writes the record to the file, if any, and prints it, or the rows as a table."""
    from mmspec.metrics.bench.table import table

    if output is not None:
        with replacing(output) as partial:
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(record))
        return
    settings = record["settings"]
    print(table(report.rows))
    used = {"prompts": len(settings["prompts"]), "threads": record["environment"]["threads"]}
    names = ("repeats", "temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale")
    used |= {name: settings[name] for name in names if settings[name] is not None}
    listed = ", ".join(f"{key} {value}" for key, value in used.items())
    print(f"\n{settings['model']} on {record['environment']['device']}: {listed}")


def attribute_score(model: str) -> Callable[[Any, Sequence[str]], float]:
    """The score of `shapes` and of `scenes`: the share of the attributes stated by prompts that their images show."""
    import numpy as np

    from mmspec.metrics.extractors.registry import load_extractor
    from mmspec.metrics.image.attributes import attribute_scores

    classifier = load_extractor(model, {}).classifier

    def score(out: Any, prompts: Sequence[str]) -> float:
        images = np.stack([np.asarray(image) for image in out.images])
        return float(attribute_scores(images, prompts, classifier)[0].mean())

    return score


def word_accuracy() -> Callable[[Any, Sequence[str]], float]:
    """The score of `spoken`: the share of words that its recognizer transcribes correctly, at least 0."""
    from mmspec.audio.spoken.recognizer import embedded_recognizer, merge_homophones
    from mmspec.metrics.audio.word_error_rate import word_error_rate

    recognizer = embedded_recognizer()

    def score(out: Any, texts: Sequence[str]) -> float:
        transcripts = [recognizer.transcribe(clip.audio[0], clip.sampling_rate) for clip in out]
        return max(1 - word_error_rate(transcripts, [merge_homophones(text) for text in texts]), 0.0)

    return score


def split_recipes(text: str) -> list[str]:
    """Splits a list of recipes at its commas; a piece like `a=b` continues the preceding recipe.

    `"sjd,scd:window=32,coupling=gumbel,plain"` is `["sjd", "scd:window=32,coupling=gumbel", "plain"]`.

    Raises:
        ArgumentError: If no recipe is named.
    """
    names: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if names and "=" in piece and ":" not in piece:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    if not names:
        raise ArgumentError("--recipes: no recipe named; see `mmspec ls recipes`")
    return names


def read_sizes(text: str) -> list[int]:
    """Batch sizes from a text such as `"1,8"`.

    Raises:
        ArgumentError: If they are not all whole numbers of at least 1, or one exceeds `limits.OUTPUTS`.
    """
    try:
        sizes = [int(piece) for piece in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"--batch: {text!r} must be whole numbers of at least 1, separated by commas")
    limits.OUTPUTS.check("--batch", max(sizes))
    return sizes
