"""`mmspec bench image`: recipes side by side in one run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.commands.options import Device, Drafter, GuidanceScale, Json, Model, Seed, Temperature, TopK, TopP
from mmspec.commands.pipes import load_silent
from mmspec.errors import ArgumentError
from mmspec.files import check_writable, replacing
from mmspec.recipes import Recipe, parse

SCHEMA_VERSION = 1


def bench_image(
    model: Model = "shapes",
    recipes: Annotated[
        str, typer.Option(help="Separated by commas; a piece like a=b is a knob of the recipe before it.")
    ] = "plain,draft,table,sjd,scd",
    batch: Annotated[str, typer.Option(help="Rows per call, separated by commas.")] = "1,8",
    prompts: Annotated[str, typer.Option(help="A text file with a prompt per line, or `builtin`.")] = "builtin",
    limit: Annotated[int | None, typer.Option(min=1, help="Use the first so many prompts.", show_default="all")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes over the prompts.")] = 3,
    seed: Seed = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    guidance_scale: GuidanceScale = None,
    threads: Annotated[int | None, typer.Option(min=1, show_default="torch's", help="CPU threads.")] = None,
    drafter: Drafter = None,
    device: Device = "cpu",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", show_default=False, help="Write everything to this JSON file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time recipes against plain decoding of the same prompts and seeds, and print a table.

    A recipe that claims to be exact gets a speed-up only after it has passed the exactness check.
    """
    chosen = [parse(text) for text in split_recipes(recipes)]
    sizes = read_sizes(batch)
    if output is not None:
        check_writable(output, "-o/--output")

    import torch

    from mmspec.conformance import check
    from mmspec.metrics.bench import Overrides, bench, generations
    from mmspec.metrics.bench_table import table
    from mmspec.metrics.environment import environment
    from mmspec.metrics.prompts import read_prompts

    texts = read_prompts(prompts, limit)
    overrides = Overrides(temperature, top_k, top_p, guidance_scale)
    if threads is not None:
        torch.set_num_threads(threads)
    pipe = load_silent(model, device, drafter)
    with _run_bar(generations(len(texts), chosen, sizes, repeats), quiet=as_json) as on_run:
        report = bench(
            pipe,
            texts,
            chosen,
            gate=check,
            batches=sizes,
            repeats=repeats,
            seed=seed,
            overrides=overrides,
            score=attribute_score() if model == "shapes" else None,
            on_run=on_run,
        )

    sampling = {key: pipe.config[key] if value is None else value for key, value in asdict(overrides).items()}
    facts = environment()
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "settings": {
            "model": model,
            "recipes": [str(recipe) for recipe in chosen],
            "batch": sizes,
            "prompts": texts,
            "repeats": repeats,
            "seed": seed,
            "device": device,
            "drafter": drafter,
            **sampling,
        },
        "environment": facts,
        **asdict(report),
    }
    if output is not None:
        with replacing(output) as partial:
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(record))
        return
    print(table(report.rows))
    used = {"prompts": len(texts), "repeats": repeats, "threads": facts["threads"], **sampling}
    print(f"\n{model} on {facts['device']}: {', '.join(f'{key} {value}' for key, value in used.items())}")


def attribute_score() -> Callable[[Any, Sequence[str]], float]:
    """The share of what prompts of `shapes` state that their pictures show."""
    import numpy as np

    from mmspec.metrics.attributes import attribute_scores, embedded_classifier

    classifier = embedded_classifier()

    def score(out: Any, prompts: Sequence[str]) -> float:
        pictures = np.stack([np.asarray(image) for image in out.images])
        return float(attribute_scores(pictures, prompts, classifier)[0].mean())

    return score


def split_recipes(text: str) -> list[str]:
    """Split at the commas between recipes: a piece like `a=b` continues the recipe before it.

    `"sjd,scd:window=32,coupling=gumbel,plain"` is `["sjd", "scd:window=32,coupling=gumbel", "plain"]`.

    Raises `ArgumentError` when no recipe is named.
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
    """Batch sizes from `"1,8"`. Raises `ArgumentError` unless all are whole numbers of at least 1."""
    try:
        sizes = [int(piece) for piece in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"--batch: {text!r} must be whole numbers of at least 1, separated by commas")
    return sizes


@contextmanager
def _run_bar(total: int, quiet: bool) -> Iterator[Callable[[Recipe, int], None]]:
    """Yield a callback that shows on stderr which recipe runs, out of `total` generations."""
    from tqdm import tqdm

    with tqdm(total=total, unit=" runs", file=sys.stderr, disable=quiet or not sys.stderr.isatty()) as bar:

        def on_run(recipe: Recipe, rows: int) -> None:
            bar.set_postfix_str(f"{recipe}, batch {rows}", refresh=False)
            bar.update()

        yield on_run
