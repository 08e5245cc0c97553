"""Drafts of vectors by another model: a smaller one, the target's first layers, or fewer steps of its head."""

from __future__ import annotations

from mmspec.continuous.sampler import LatentSampler
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_model import ModelDrafter
from mmspec.errors import ArgumentError


def build(context: DraftingContext) -> ModelDrafter:
    """The builder of the recipes `draft` and `layer-skip` for vectors."""
    layers = int(context.recipe.knobs["layers"])
    return _build(context, "layer-skip" if layers else "draft", layers)


def build_few_steps(context: DraftingContext) -> ModelDrafter:
    """The builder of the recipe `few-steps`."""
    return _build(context, "few-steps", int(context.recipe.knobs["steps"]))


def _build(context: DraftingContext, kind: str, amount: int) -> ModelDrafter:
    """A drafter around the model of that kind.

    Raises:
        ArgumentError: If the target has no such model.
    """
    recipe, models, sampler = context.recipe, context.resources.latent_models, context.sampler
    assert isinstance(sampler, LatentSampler)
    if kind not in models:
        raise ArgumentError(
            f"recipe {recipe.name!r} is not possible with this model of latents; it can be drafted for by "
            f"{', '.join(['sjd', 'scd', *models])}"
        )
    model = models[kind](amount)
    # Where a rule replaces drafts in place, every token of the last window may differ from what the drafter has read.
    changed = 2 if sampler.rule.truncates else recipe.window + 1
    return ModelDrafter(model.target, sampler.with_head(model.head), changed)
