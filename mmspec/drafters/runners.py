"""Builds the draft runner of a recipe: a draft model, or a head on the target's features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import ExitFeatureTarget, FeatureTarget, FrameFeatureTarget, LayerFeatureTarget, TreeTarget
from mmspec.drafters.block import BlockRunner
from mmspec.drafters.draft_model import draft_model_of
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.eagle import EagleRunner
from mmspec.drafters.frame import FrameRunner
from mmspec.drafters.grid import GridRunner
from mmspec.drafters.hydra import HydraRunner
from mmspec.drafters.kangaroo import KangarooRunner
from mmspec.drafters.medusa import MedusaRunner
from mmspec.drafters.model_runner import ModelRunner
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.block import BlockHead
from mmspec.heads.eagle import EagleHead
from mmspec.heads.eagle3 import Eagle3Head
from mmspec.heads.exit_adapter import ExitAdapter
from mmspec.heads.frame import FrameHead
from mmspec.heads.grid import GridHead
from mmspec.heads.hydra import HydraHeads
from mmspec.heads.medusa import MedusaHeads
from mmspec.heads.mtp import MTPHead
from mmspec.sampling.params import SamplingParams, change_each
from mmspec.sampling.sampler import TokenSampler


def build_runner(context: DraftingContext, kind: str, greedy_as_warm: bool = False) -> DraftRunner:
    """Builds a draft runner.

    Args:
        context: The recipe and the model's resources.
        kind: "model", "eagle", "medusa", "hydra", "kangaroo", "block", "grid" or "frame".
        greedy_as_warm: Whether greedy rows draft at temperature 1. A tree that ranks tokens by their probability needs
            it, because the one-hot distribution of a greedy row ranks nothing.

    Raises:
        ArgumentError: If the model has no such network, or one that does not draft far enough ahead.
        ModelError: If the network belongs to another model.
    """
    recipe, layout, target, resources = context.recipe, context.layout, context.target, context.resources

    def sampler(settings: Sequence[SamplingParams]) -> TokenSampler:
        if greedy_as_warm:
            settings = change_each(settings, lambda s: replace(s, temperature=s.temperature or 1.0))
        return TokenSampler(settings, layout.constraint, target.device)

    if kind == "model":
        model, settings = draft_model_of(context)
        if recipe.info.tree and not isinstance(model, TreeTarget):
            raise ArgumentError(f"recipes with a tree are not possible here: {type(model).__name__} reads windows only")
        return ModelRunner(model, sampler(settings))
    if kind not in resources.heads:
        raise ArgumentError(
            f"recipe {recipe.name!r} needs a drafter of kind {kind!r}, and this model has none; train one with "
            f"`mmspec train-drafter --kind {kind}` and pass its folder as drafter= to mmspec.load, or as --drafter"
        )
    head = resources.heads[kind]
    if not isinstance(target, FrameFeatureTarget if isinstance(head, FrameHead) else FeatureTarget):
        features = "features of frames" if isinstance(head, FrameHead) else "features"
        raise ArgumentError(
            f"recipe {recipe.name!r} is not possible here: {type(target).__name__} does not provide {features}"
        )
    if head.vocab_size != target.vocab_size:
        raise ModelError(
            f"drafter has a vocabulary of {head.vocab_size} tokens, the model {target.vocab_size}; they must match"
        )
    if isinstance(head, FrameHead):
        assert isinstance(target, FrameFeatureTarget)
        if head.codebooks != target.frame_size:
            raise ModelError(
                f"drafter is for frames of {head.codebooks} tokens, and this model's have {target.frame_size}"
            )
        return FrameRunner(head, target, sampler(context.samplings))
    assert isinstance(target, FeatureTarget)
    refreshes = recipe.knobs.get("refresh") == kind
    depth = int(recipe.knobs["refreshed"]) if refreshes else recipe.depth
    if isinstance(head, Eagle3Head) and not isinstance(target, LayerFeatureTarget):
        raise ArgumentError(
            f"recipe {recipe.name!r} is not possible here: an EAGLE-3 head reads features of several layers, and "
            f"{type(target).__name__} provides those of the last one only"
        )
    if isinstance(head, EagleHead | Eagle3Head | MTPHead):
        return EagleRunner(head, target, sampler(context.samplings), layout.length, recipe.window)
    if isinstance(head, BlockHead):
        if head.layer_ids and not isinstance(target, LayerFeatureTarget):
            raise ArgumentError(
                f"recipe {recipe.name!r} is not possible here: the drafter reads layers {list(head.layer_ids)}, and "
                f"{type(target).__name__} provides the features of the last one only"
            )
        return BlockRunner(head, target, sampler(context.samplings), layout.length, recipe.window, depth)
    if isinstance(head, GridHead):
        if layout.width != head.grid_width:
            raise ModelError(f"drafter is for lines of {head.grid_width} tokens, and this model's have {layout.width}")
        drafts = max(depth, recipe.window - 1)
        return GridRunner(head, target, sampler(context.samplings), layout.length, recipe.window, drafts)
    if isinstance(head, ExitAdapter):
        if not isinstance(target, ExitFeatureTarget):
            raise ArgumentError(
                f"recipe {recipe.name!r} is not possible here: {type(target).__name__} does not provide the features "
                "of an early exit"
            )
        return KangarooRunner(head, target, sampler(context.samplings), layout.length, recipe.window)
    assert isinstance(head, MedusaHeads | HydraHeads), kind
    if depth > head.count and not (recipe.auto or recipe.auto_branch):
        raise ArgumentError(
            f"recipe '{recipe}' drafts {depth} tokens ahead, but the drafter has {head.count} {kind.title()} heads"
        )
    if isinstance(head, HydraHeads):
        return HydraRunner(head, target, sampler(context.samplings))
    return MedusaRunner(head, target, sampler(context.samplings))
