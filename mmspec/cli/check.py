"""`mmspec check`: whether recipes keep the distribution that they claim to keep."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from mmspec.cli.options import Json
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse, ways_to_draft

FAILED = 1


def check(
    what: Annotated[str, typer.Argument(metavar="[RECIPE|RULE|all]", show_default=True)] = "all",
    columns: Annotated[
        bool, typer.Option("--columns", help="Check on a model of several codebooks; all: the recipes it has.")
    ] = False,
    latents: Annotated[
        bool, typer.Option("--latents", help="Check on a model of continuous tokens; all: the recipes it has.")
    ] = False,
    samples: Annotated[int, typer.Option(min=1000, help="Rows decoded per recipe; more find smaller biases.")] = 60_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the toy model and of the rows.")] = 0,
    as_json: Json = False,
) -> None:
    """Compare recipes with plain decoding on a toy model that is small enough to enumerate.

    TV is the total variation distance between the joint distributions; floor is its mean for that many exact samples.
    z is the mean of a score of the sequences, such as their likelihood, in standard errors. An exact recipe passes
    below both limits, a relaxed one if TV is within its own bound, summed over the tokens. Recipes
    and rules of plug-ins are checked too. Recipes with a rule for continuous tokens run on a toy with Gaussian latents:
    two samples are compared, and the score is their largest difference in standard errors; a relaxed rule has no bound
    there and always passes. Exit status 1 if a recipe fails.
    """
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


def check_on_tokens(recipe: Recipe, samples: int, seed: int, columns: bool) -> tuple[dict[str, Any], str]:
    """Checks a recipe on the enumerable toy of tokens or of columns.

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
