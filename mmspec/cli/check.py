"""`mmspec check`: whether recipes keep the distribution that they claim to keep."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.exactness_gate import is_foreign
from mmspec.cli.model_check.options import ModelOptions
from mmspec.cli.options import Json
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, default_recipe, parse
from mmspec.ways_to_draft import ways_to_draft

FAILED = 1
# The recipes that are checked on a model, those that it can run.
USEFUL = ("scd", "sjd", "recycle", "draft", "layer-skip", "smoothed", "layer-skip+smoothed:layers=1")
DEFAULT_PROMPT = "a red circle above a blue square"
REPETITIONS = 3


def check(
    what: Annotated[str, typer.Argument(metavar="[RECIPE|RULE|all]", show_default=True)] = "all",
    columns: Annotated[
        bool, typer.Option("--columns", help="Check on a model of several codebooks; all: the recipes it has.")
    ] = False,
    latents: Annotated[
        bool, typer.Option("--latents", help="Check on a model of continuous tokens; all: the recipes it has.")
    ] = False,
    samples: Annotated[int, typer.Option(min=1000, help="Rows decoded per recipe; more find smaller biases.")] = 60_000,
    seed: Annotated[int, typer.Option(min=0, max=2**32, help="Seed of the toy model and of the rows.")] = 0,
    model: Annotated[
        str | None,
        typer.Option("-m", "--model", show_default=False, help="Check a model with its weights: a folder or Hub id."),
    ] = None,
    prompt: Annotated[str | None, typer.Option(show_default=False, help="With -m: the prompt, text or class.")] = None,
    device: Annotated[str | None, typer.Option(show_default="cpu", help="With -m: where the model runs.")] = None,
    dtype: Annotated[
        str | None, typer.Option(show_default="float32", help="With -m: the dtype of the weights, such as bf16.")
    ] = None,
    batch_invariance: Annotated[
        bool,
        typer.Option(
            "--batch-invariance", help="With -m: whether the codes of a request depend on the requests beside it."
        ),
    ] = False,
    tokenizer: Annotated[
        str | None, typer.Option(show_default=False, help="With -m: the image tokenizer or codec, a file or Hub id.")
    ] = None,
    style: Annotated[
        str | None, typer.Option(show_default=False, help="With -m: llasa or orpheus, for a flat speech model.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=8, show_default="64", help="With -m: new tokens, where the model allows a number.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=8,
            show_default="64",
            help="With -m: rows of each sample; more find less. With --batch-invariance: requests, 8 by default.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", show_default=False, help="With -m: write the page to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare recipes with plain decoding on a toy model that is small enough to enumerate, or check a model (-m).

    With -m, a model is checked with its own weights: greedy tokens against the model's own generate, windows and
    roll-back against plain steps, samples against the model's own in a two-sample test, kernels and CUDA graphs
    against the eager path, and the calls and seconds of each recipe, on one Markdown page. RECIPE is one recipe, or all
    for the most useful ones. With --batch-invariance, requests are decoded alone, in one batch, joining late and over
    a server, in float32 and in bfloat16, or in --dtype: in float32 their codes must be equal.

    TV is the total variation distance between the joint distributions; floor is its mean for that many exact samples.
    z is the mean of a score of the sequences, such as their likelihood, in standard errors. An exact recipe passes
    below both limits, a relaxed one if TV is within its own bound, summed over the tokens. Recipes
    and rules of plug-ins are checked too. Recipes with a rule for continuous tokens run on a toy with Gaussian latents:
    two samples are compared, and the score is their largest difference in standard errors; a relaxed rule has no bound
    there and always passes. Exit status 1 if a recipe fails.
    """
    if model is not None:
        wanted = None if what == "all" else [parse(what)]
        options = ModelOptions(prompt, device or "cpu", dtype, tokenizer, style, tokens or 64, rows or 64)
        if batch_invariance:
            from mmspec.cli.model_check.batch_invariance_report import report_batch_invariance

            options = replace(options, rows=rows or 8)
            if not report_batch_invariance(model, None if wanted is None else wanted[0], options, output, as_json):
                raise typer.Exit(FAILED)
            return
        report_model(model, wanted, options, output, as_json)
        return
    if columns and latents:
        raise ArgumentError("--columns and --latents exclude each other; give one of them")
    chosen = all_recipes(columns, latents) if what == "all" else [parse(what)]
    width = max(len(str(recipe)) for recipe in chosen)
    entries: list[dict[str, Any]] = []
    for recipe in chosen:
        if latents or (recipe.rule.continuous and not columns):
            entry, line = check_on_latents(recipe, samples, seed)
        else:
            entry, line = check_on_tokens(recipe, samples, seed, columns)
        entries.append(entry)
        if not as_json:
            print(f"{recipe!s:<{width}}  {line}", flush=True)
    if as_json:
        print(json.dumps({"samples": samples, "seed": seed, "results": entries}))
    if not all(entry["passed"] for entry in entries):
        raise typer.Exit(FAILED)


def report_model(
    model: str, recipes: Sequence[Recipe] | None, options: ModelOptions, output: Path | None, as_json: bool
) -> None:
    """Checks a model with its weights, and prints or writes the page.

    Args:
        model: As `mmspec.load` reads it.
        recipes: Recipes besides plain decoding; None for `USEFUL` and the default of the model.
        options: The other options.
        output: Where to write the page; None prints it.
        as_json: Whether to print a JSON object instead.

    Raises:
        typer.Exit: With status 1 if a check fails.
    """
    from mmspec.cli.model_check.checks import check_model
    from mmspec.cli.model_check.page import as_json as as_object
    from mmspec.cli.model_check.page import page, write_page
    from mmspec.cli.model_check.subject import dtype_of, subject_of
    from mmspec.files import check_writable
    from mmspec.metrics.environment import environment

    if output is not None:
        check_writable(output, "-o/--output")
    pipe = options.load(model, options.dtype)
    prompt = DEFAULT_PROMPT if options.prompt is None else options.prompt
    own = default_recipe(pipe)
    chosen = recipes or list(dict.fromkeys([own, *map(parse, USEFUL)], None))
    dtype = dtype_of(pipe)
    found = environment()
    card = f" ({found['device']})" if options.device.startswith("cuda") else ""
    facts = {**found, "device": options.device + card, "dtype": str(dtype).removeprefix("torch.")}
    report = check_model(
        subject_of(pipe, prompt, options.tokens),
        model,
        prompt,
        {name: value for name, value in facts.items() if value is not None},
        [recipe for recipe in chosen if recipe.name != "plain"],
        options.rows,
        REPETITIONS,
        options.device,
        dtype,
        lambda name: print(f"checking {name}", file=sys.stderr, flush=True),
    )
    write_page(page(report), as_object(report), output, as_json)
    if not report.passed:
        raise typer.Exit(FAILED)


def check_on_tokens(recipe: Recipe, samples: int, seed: int, columns: bool) -> tuple[dict[str, Any], str]:
    """Checks a recipe on the enumerable toy of tokens or of columns; foreign rules on a large vocabulary, too.

    Returns:
        The JSON entry, and the figures and the verdict in one line.
    """
    from mmspec.decoding.layout import Layout
    from mmspec.testing.columns import check_columns
    from mmspec.testing.exactness import check

    if columns:
        layout = Layout(length=4, cell=(2,))
        result = check_columns(recipe, samples=samples, seed=seed, layout=layout)
    else:
        layout = Layout(length=5, width=2)
        result = check(recipe, samples=samples, seed=seed, layout=layout)
        if recipe.exact and result.ok and is_foreign(recipe):
            from mmspec.testing.relabelled import check_relabelled

            relabelled = check_relabelled(recipe, samples, seed)
            result = result if relabelled.ok else relabelled
    passed = result.ok if recipe.exact else result.tv <= result.limit + layout.length * result.tv_bound
    claim = "exact" if recipe.exact else f"relaxed, bound {result.tv_bound:.4f} per token"
    figures = f"TV {result.tv:.4f}  floor {result.floor:.4f}  limit {result.limit:.4f}"
    if recipe.exact:
        figures += f"  z {result.z:+.1f}  limit {result.z_limit:.1f}"
    entry = {"recipe": str(recipe), "exact": recipe.exact, "passed": passed, **asdict(result)}
    return entry, f"{figures}  {'passed' if passed else 'FAILED'}  ({claim})"


def check_on_latents(recipe: Recipe, samples: int, seed: int) -> tuple[dict[str, Any], str]:
    """Checks a recipe on the toy of latents.

    Returns:
        The JSON entry, and the figures and the verdict in one line.
    """
    from mmspec.testing.latents import check_latents

    result = check_latents(recipe, samples=samples, seed=seed)
    passed = result.ok or not recipe.exact
    claim = "exact" if recipe.exact else f"relaxed, accepted drafts {result.distance:.3f} from the target's latents"
    figures = f"score {result.score:.2f}  limit {result.limit:.2f}  {result.tokens_per_call:.2f} tokens per call"
    entry = {"recipe": str(recipe), "exact": recipe.exact, "passed": passed, **asdict(result)}
    return entry, f"{figures}  {'passed' if passed else 'FAILED'}  ({claim})"


def all_recipes(columns: bool, latents: bool) -> list[Recipe]:
    """Every way of drafting with the exact rule, and every other rule with the default way of drafting.

    Args:
        columns: Only what a model of columns can run.
        latents: Only what a model of latents can run.
    """
    from mmspec.registry import rules

    ways = ways_to_draft().usable()
    others = {name: rule for name, rule in rules().usable().items() if name != "exact"}
    if columns:
        drafting = [name for name, info in ways.items() if info.supports("columns")]
        # The toy of columns exposes no features.
        names = [name for name, rule in others.items() if not rule.continuous and not rule.takes_features]
    elif latents:
        drafting = [f"{name}+smoothed" for name, info in ways.items() if info.supports("latents")]
        names = [name for name, rule in others.items() if rule.continuous and name != "smoothed"]
    else:
        drafting = [name for name, info in ways.items() if info.supports("tokens") or info.continuous]
        names = list(others)
    return [parse(name) for name in (*drafting, *names)]
