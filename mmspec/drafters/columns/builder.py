"""From a recipe to a drafter of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import Drafter
from mmspec.decoding.target import EarlyExit, Target
from mmspec.drafters.columns.coupling import COLUMN_COUPLINGS
from mmspec.drafters.columns.token_init import (
    ColumnInit,
    ColumnInitDrafter,
    ColumnRecycle,
    random_column,
    repeat_left,
)
from mmspec.drafters.draft_model import ModelDrafter
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.drafters.jacobi import Jacobi
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.sampling.multi_codebook import ColumnSampler
from mmspec.sampling.params import SamplingParams

if TYPE_CHECKING:
    from mmspec.decoding.resources import DraftResources

STARTS = ("auto", "left", "random", "recycle")


def column_sampler(samplings: Sequence[SamplingParams], layout: Layout, target: Target) -> ColumnSampler:
    """The distribution of a layout whose tokens are columns."""
    return ColumnSampler(samplings, layout.forced, target.device)


def build_column_drafter(
    recipe: Recipe, layout: Layout, target: Target, samplings: Sequence[SamplingParams], resources: DraftResources
) -> Drafter | None:
    """The drafter a recipe asks for, where tokens are columns; None for plain decoding.

    Raises:
        ArgumentError: For a recipe that drafts otherwise, and for a draft model that is not there.
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
        part = EarlyExitTarget(target, EarlyExit(layers, guided=scale != 1))
        settings = [replace(s, guidance_scale=scale, guidance_end=None) for s in resources.draft_sampling or samplings]
        return ModelDrafter(part, column_sampler(settings, layout, part))
    if kind == "model":
        if resources.draft_model is None:
            raise ArgumentError(f"recipe {recipe.name!r} needs a draft model, and this model brings none")
        model = resources.draft_model()
        return ModelDrafter(model, column_sampler(resources.draft_sampling, layout, model))
    coupling = COLUMN_COUPLINGS[str(knobs.get("coupling", "fresh"))] if kind == "jacobi" else None
    return Jacobi(ColumnInitDrafter(find_start(start, layout, target, len(samplings))), coupling, target.vocab_size)


def find_start(name: str, layout: Layout, target: Target, batch_size: int) -> ColumnInit | ColumnRecycle:
    """The guess of that name."""
    if name == "recycle":
        return ColumnRecycle(batch_size, layout.cell[0], target.vocab_size, target.device)
    return random_column(target.vocab_size) if name == "random" else repeat_left
