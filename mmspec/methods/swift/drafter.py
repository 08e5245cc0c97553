"""The target without some of its layers as the draft model.

SWIFT (Xia et al. 2024, arXiv 2410.06916) and Draft & Verify (Zhang et al. 2023, arXiv 2309.08168) skip layers in the
middle of the model, where an early exit runs the first ones only. SWIFT looks for them while it decodes. Here
`mmspec train-drafter --kind swift` looks for them beforehand, on the model's own sequences: a choice that changes while
decoding would let a row's tokens depend on the rows beside it.
"""

from __future__ import annotations

from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import EarlyExit, SupportsEarlyExit
from mmspec.drafters.chain import ChainDrafter
from mmspec.drafters.draft_model import draft_sampling
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.drafters.shared_cache import SharedCacheRunner
from mmspec.errors import ArgumentError, ModelError
from mmspec.methods.swift.head import SkippedLayers


def build(context: DraftingContext) -> ChainDrafter:
    """Builds the drafter of the recipe `swift`.

    Raises:
        ArgumentError: If the model has no choice of layers, or cannot skip layers.
        ModelError: If the choice was made for another model.
    """
    recipe, target, chosen = context.recipe, context.target, context.resources.heads.get("swift")
    if not isinstance(chosen, SkippedLayers):
        raise ArgumentError(
            f"recipe '{recipe}' needs a choice of layers, and this model has none; make one with "
            "`mmspec train-drafter --kind swift` and name its folder as drafter"
        )
    layers = target.layers if isinstance(target, SupportsEarlyExit) else 0
    if layers and (chosen.vocab_size, chosen.layers) != (target.vocab_size, layers):
        raise ModelError(
            f"drafter is for a model of {chosen.layers} layers and {chosen.vocab_size} tokens, and this one has "
            f"{layers} and {target.vocab_size}"
        )
    scale, skip = float(recipe.knobs["guidance"]), chosen.skip(float(recipe.knobs["skip"]))
    part = EarlyExitTarget(target, EarlyExit(chosen.layers, guided=scale != 1, skip=skip))
    sampler = context.layout.sampler(draft_sampling(context, scale), target.device)
    return ChainDrafter(SharedCacheRunner(part, sampler), target.device)
