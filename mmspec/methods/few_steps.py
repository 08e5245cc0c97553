"""Drafts of latents by the target with fewer steps of its diffusion head."""

from __future__ import annotations

from mmspec.continuous.draft_model import build_with
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.draft_model import ModelDrafter


def build(context: DraftingContext) -> ModelDrafter:
    """The builder of the recipe `few-steps`."""
    return build_with(context, "few-steps", int(context.recipe.knobs["steps"]))
