"""Builders of the Jacobi recipes and of `recycle` for columns."""

from __future__ import annotations

from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.columns.coupling import COLUMN_COUPLINGS
from mmspec.drafters.columns.token_init import (
    ColumnInit,
    ColumnInitDrafter,
    ColumnRecycle,
    RandomColumn,
    repeat_left,
)
from mmspec.drafters.coupling import refuse_leaks
from mmspec.drafters.jacobi import Jacobi
from mmspec.errors import ArgumentError

STARTS = ("auto", "left", "random", "recycle")


def build(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipes `sjd` and `scd` for columns.

    Raises:
        ArgumentError: For a `start` that does not apply to columns, and as `mmspec.drafters.jacobi.build`.
    """
    refuse_leaks(context)
    recipe = context.recipe
    start = str(recipe.knobs["start"])
    if start not in STARTS:
        raise ArgumentError(
            f"recipe '{recipe}' is not possible here: this model generates columns of {context.layout.cell[0]} codes, "
            f"for which start must be one of {', '.join(STARTS)}"
        )
    if recipe.knobs["refresh"] != "none":
        raise ArgumentError(f"recipe '{recipe}' is not possible here: drafts of columns cannot be refreshed")
    coupling = COLUMN_COUPLINGS[str(recipe.knobs.get("coupling", "fresh"))]
    return Jacobi(ColumnInitDrafter(_token_init(context, start)), coupling, context.target.vocab_size)


def build_recycle(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipe `recycle` for columns."""
    return Jacobi(ColumnInitDrafter(_token_init(context, "recycle")), None, context.target.vocab_size)


def _token_init(context: DraftingContext, name: str) -> ColumnInit | ColumnRecycle:
    target = context.target
    if name == "recycle":
        return ColumnRecycle(context.batch_size, context.layout.cell[0], target.vocab_size, target.device)
    return RandomColumn(target.vocab_size) if name == "random" else repeat_left
