"""From a recipe to a drafter of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mmspec.columns import ColumnLaw
from mmspec.drafters.column_carry import COLUMN_CARRIES
from mmspec.drafters.column_guesses import (
    ColumnGuesses,
    ColumnRecycle,
    ColumnStart,
    random_column,
    repeat_left,
)
from mmspec.drafters.first_layers import FirstLayers, Part
from mmspec.drafters.jacobi import Jacobi
from mmspec.drafters.model import ModelDrafter
from mmspec.errors import ArgumentError
from mmspec.law import Sampling
from mmspec.loop import Drafter
from mmspec.recipes import Recipe
from mmspec.target import Layout, Target

if TYPE_CHECKING:
    from mmspec.engine import Aids

STARTS = ("auto", "left", "random", "recycle")


def column_law(samplings: Sequence[Sampling], layout: Layout, target: Target) -> ColumnLaw:
    """The law of a layout whose tokens are columns."""
    return ColumnLaw(samplings, layout.forced, target.device)


def build_column_drafter(
    recipe: Recipe, layout: Layout, target: Target, samplings: Sequence[Sampling], aids: Aids
) -> Drafter | None:
    """The drafter a recipe asks for, where tokens are columns; None for plain decoding.

    **Raises:** `ArgumentError` for a recipe that drafts otherwise, and for a draft model that is not there.
    """
    kind, knobs = recipe.info.drafter, recipe.knobs
    if kind == "none":
        return None
    start = str(knobs.get("start", kind))
    if recipe.info.tree or kind not in ("model", "recycle", "jacobi") or (kind == "jacobi" and start not in STARTS):
        raise ArgumentError(
            f"recipe '{recipe}' is not possible here: this model makes columns of {layout.cell[0]} codes, for which "
            f"there are plain, draft, layer-skip, recycle, sjd and scd, with start={'/'.join(STARTS)}"
        )
    if kind == "model" and (layers := int(knobs["layers"])):
        scale = float(knobs["guidance"])
        part = FirstLayers(target, Part(layers, guided=scale != 1))
        settings = [replace(s, guidance_scale=scale, guidance_end=None) for s in aids.draft_sampling or samplings]
        return ModelDrafter(part, column_law(settings, layout, part))
    if kind == "model":
        if aids.draft_model is None:
            raise ArgumentError(f"recipe {recipe.name!r} needs a draft model, and this model brings none")
        model = aids.draft_model()
        return ModelDrafter(model, column_law(aids.draft_sampling, layout, model))
    carry = COLUMN_CARRIES[str(knobs.get("coupling", "fresh"))] if kind == "jacobi" else None
    return Jacobi(ColumnGuesses(find_start(start, layout, target, len(samplings))), carry, target.vocab_size)


def find_start(name: str, layout: Layout, target: Target, rows: int) -> ColumnStart | ColumnRecycle:
    """The guess of that name."""
    if name == "recycle":
        return ColumnRecycle(rows, layout.cell[0], target.vocab_size, target.device)
    return random_column(target.vocab_size) if name == "random" else repeat_left
