"""Drafts of latents by another model: a smaller one, the target's first layers, or the target with a faster head."""

from __future__ import annotations

from mmspec.continuous.sampler import LatentSampler
from mmspec.decoding.no_gain import tell_of_draft_models, tell_of_steps
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_model import ModelDrafter
from mmspec.errors import ArgumentError


def build(context: DraftingContext) -> ModelDrafter:
    """The builder of the recipes `draft` and `layer-skip` for continuous tokens."""
    layers = int(context.recipe.knobs["layers"])
    return build_with(context, "layer-skip" if layers else "draft", layers)


def build_with(context: DraftingContext, kind: str, amount: int) -> ModelDrafter:
    """The drafter with a model of the given kind.

    Args:
        context: The recipe, and what drafters may use.
        kind: The recipe that the model is for, a key of `latent_models`.
        amount: Number of layers or of head steps; 0 for `draft`.

    Raises:
        ArgumentError: If the target has no such model.
    """
    recipe, models, sampler = context.recipe, context.resources.latent_models, context.sampler
    assert isinstance(sampler, LatentSampler)
    if kind not in models:
        raise ArgumentError(
            f"recipe {recipe.name!r} is not possible with this model of continuous tokens; its recipes are "
            f"{', '.join(['sjd', 'scd', *models])}"
        )
    model = models[kind](amount)
    if kind == "draft":
        tell_of_draft_models(recipe, context.target, model.target)
    elif kind == "few-steps":
        tell_of_steps(recipe, sampler.head, model.head)
    # If the rule replaces drafts in place, every token of the last window may differ from the one the drafter has read.
    changed = 2 if sampler.rule.truncates else recipe.window + 1
    return ModelDrafter(model.target, sampler.with_head(model.head), changed)
