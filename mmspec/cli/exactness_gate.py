"""What a recipe that claims to be exact has to pass before a command prints its speed-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmspec.recipes import Recipe

if TYPE_CHECKING:
    from mmspec.testing.exactness import ExactnessResult
    from mmspec.testing.latents import LatentExactnessResult


def gate(recipe: Recipe) -> ExactnessResult | LatentExactnessResult:
    """The distribution test of `mmspec check`, of numbers or of vectors as the recipe's rule asks."""
    from mmspec.testing.exactness import check
    from mmspec.testing.latents import check_latents

    return check_latents(recipe) if recipe.rule.continuous else check(recipe)
