"""The check that an exact recipe has to pass before a command prints its speed-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.recipes import Recipe

if TYPE_CHECKING:
    from mmspec.testing.exactness import ExactnessResult
    from mmspec.testing.latents import LatentExactnessResult


def gate(recipe: Recipe) -> ExactnessResult | LatentExactnessResult:
    """Runs the distribution test of `mmspec check`: on tokens, or on latents when the recipe's rule is for them."""
    from mmspec.testing.exactness import check
    from mmspec.testing.latents import check_latents

    return check_latents(recipe) if recipe.rule.continuous else check(recipe)
