"""The check that an exact recipe has to pass before a command prints its speed-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe

if TYPE_CHECKING:
    from mmspec.testing.exactness import ExactnessResult
    from mmspec.testing.latents import LatentExactnessResult


def gate(recipe: Recipe) -> ExactnessResult | LatentExactnessResult:
    """Runs the distribution test of `mmspec check` on every kind of token that the recipe can draft.

    A rule for latents is checked on latents; any other recipe on tokens and, if it can draft columns of codes, on
    columns as well. First layers of a model are a draft model of their own, however many; the toys have few layers, so
    that a larger number is checked as the largest that they have.

    Returns:
        The result that failed, or the first one.
    """
    from mmspec.testing.columns import check_columns
    from mmspec.testing.exactness import check
    from mmspec.testing.latents import check_latents
    from mmspec.testing.toys import LAYERS

    if int(recipe.knobs.get("layers", 0)) >= LAYERS:
        recipe = recipe.with_knobs(layers=LAYERS - 1)
    if recipe.rule.continuous:
        return check_latents(recipe)
    result = check(recipe)
    if result.ok and recipe.info.supports("columns"):
        try:
            columns = check_columns(recipe)
        except ArgumentError:  # with these knobs the recipe is for tokens only, such as scd:start=table
            return result
        return result if columns.ok else columns
    return result
