"""`mmspec check`: does a recipe or a rule keep the distribution it claims to keep?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from mmspec.cli.options import Json
from mmspec.recipes import RECIPES, Recipe, parse

FAILED = 1


def check(
    what: Annotated[str, typer.Argument(metavar="[RECIPE|RULE|all]", show_default=True)] = "all",
    samples: Annotated[int, typer.Option(min=1000, help="Rows decoded per recipe; more find smaller biases.")] = 60_000,
    seed: Annotated[int, typer.Option(min=0, help="Of the toy model and of the rows.")] = 0,
    as_json: Json = False,
) -> None:
    """Compare recipes with plain decoding on a model small enough to enumerate; plug-ins' rules too.

    TV is the total variation between the joint distributions, floor what exact samples of that number show by chance.
    A recipe that says it is exact passes below the limit; a relaxed one passes where its own bound holds, token by
    token. With a rule for vectors two samples are compared, and the score is their largest difference in standard
    errors; a relaxed rule gives no bound there, and is shown as it is. Exit status 1 when one fails.
    """
    chosen = everything() if what == "all" else [parse(what)]

    from mmspec.decoding.layout import Layout
    from mmspec.sampling.params import SamplingParams
    from mmspec.testing.exactness import check as measure

    sampling, layout = SamplingParams(temperature=0.8, top_p=0.9, guidance_scale=1.5), Layout(length=5, width=2)
    width = max(len(str(recipe)) for recipe in chosen)
    entries: list[dict[str, Any]] = []
    for recipe in chosen:
        if recipe.rule.continuous:
            entries.append(check_vectors(recipe, samples, seed, None if as_json else width))
            continue
        found = measure(recipe, sampling, samples=samples, seed=seed, layout=layout)
        allowed = found.limit + (0 if recipe.exact else layout.length * found.tv_bound)
        passed = found.tv <= allowed
        entries.append({"recipe": str(recipe), "exact": recipe.exact, "passed": passed, **asdict(found)})
        if not as_json:
            claim = "exact" if recipe.exact else f"relaxed, bound {found.tv_bound:.4f} per token"
            figures = f"TV {found.tv:.4f}  floor {found.floor:.4f}  limit {found.limit:.4f}"
            print(f"{recipe!s:<{width}}  {figures}  {'passed' if passed else 'FAILED'}  ({claim})", flush=True)
    if as_json:
        print(json.dumps({"samples": samples, "seed": seed, "results": entries}))
    if not all(entry["passed"] for entry in entries):
        raise typer.Exit(FAILED)


def check_vectors(recipe: Recipe, samples: int, seed: int, width: int | None) -> dict[str, Any]:
    """The entry of a recipe whose rule is for vectors; it is printed, its name padded, unless `width` is None."""
    from mmspec.testing.latents import check_latents

    found = check_latents(recipe, samples=samples, seed=seed)
    passed = found.ok or not recipe.exact
    if width is not None:
        claim = "exact" if recipe.exact else f"relaxed, drafts kept {found.distance:.3f} from the target's latents"
        figures = f"score {found.score:.2f}  limit {found.limit:.2f}  {found.tokens_per_call:.2f} tokens per call"
        print(f"{recipe!s:<{width}}  {figures}  {'passed' if passed else 'FAILED'}  ({claim})", flush=True)
    return {"recipe": str(recipe), "exact": recipe.exact, "passed": passed, **asdict(found)}


def everything() -> list[Recipe]:
    """Every way of drafting with the exact rule, and every other rule with the default way."""
    from mmspec.registry import rules

    return [parse(name) for name in (*RECIPES, *(name for name in rules() if name != "exact"))]
