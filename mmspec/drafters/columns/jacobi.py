"""The builder of the Jacobi recipes for columns."""

from __future__ import annotations

from mmspec.decoding.drafter import ContinuationDrafter
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.columns.coupling import COLUMN_COUPLINGS
from mmspec.drafters.columns.token_init import (
    ColumnInitDrafter,
    RandomColumn,
    repeat_left,
)
from mmspec.drafters.coupling import refuse_leaks
from mmspec.drafters.jacobi import START, Jacobi, built_choice
from mmspec.errors import ArgumentError

STARTS = ("auto", "left", "random")


def build(context: DraftingContext) -> Jacobi:
    """Builds the drafter of the recipes `sjd` and `scd` for columns.

    Raises:
        ArgumentError: For a `start` that does not apply to columns, and as `mmspec.drafters.jacobi.build`.
    """
    refuse_leaks(context)
    recipe = context.recipe
    start = str(recipe.knobs["start"])
    known = *STARTS, *(name for name, choice in context.starts.items() if "columns" in choice.builders)
    if start not in known:
        raise ArgumentError(
            f"recipe '{recipe}' is not possible here: this model generates columns of {context.layout.cell[0]} codes, "
            f"for which start must be one of {', '.join(known)}"
        )
    if recipe.knobs["refresh"] != "none":
        raise ArgumentError(f"recipe '{recipe}' is not possible here: drafts of columns cannot be refreshed")
    coupling = COLUMN_COUPLINGS[str(recipe.knobs.get("coupling", "fresh"))]
    return Jacobi(_continuation(context, start), coupling, context.target.vocab_size)


def _continuation(context: DraftingContext, name: str) -> ContinuationDrafter:
    if name in context.starts:
        found: ContinuationDrafter = built_choice(START, name, context.starts[name], context)
        return found
    return ColumnInitDrafter(RandomColumn(context.target.vocab_size) if name == "random" else repeat_left)
