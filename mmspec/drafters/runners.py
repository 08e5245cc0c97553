"""Builds the draft runner of a recipe: a draft model, or a head on the target's features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mmspec.arguments import checked_call, has
from mmspec.decoding.resources import DraftingContext
from mmspec.decoding.target import FeatureTarget, FrameFeatureTarget, TreeTarget
from mmspec.drafters.draft_model import draft_model_of
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.model_runner import ModelRunner
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError, ModelError
from mmspec.sampling.params import change_each
from mmspec.sampling.sampler import TokenSampler

# Makes a runner from a head, the context, the sampler of drafts and the number of drafts that a window needs.
BuildRunner = Callable[[Any, DraftingContext, TokenSampler, int], DraftRunner]


def build_runner(context: DraftingContext, kind: str, greedy_as_warm: bool = False) -> DraftRunner:
    """Builds a draft runner.

    Args:
        context: The recipe and the model's resources.
        kind: "model", or one of the context's `networks`.
        greedy_as_warm: Whether greedy rows draft at temperature 1. A tree that ranks tokens by their probability needs
            it, because the one-hot distribution of a greedy row ranks nothing.

    Raises:
        ArgumentError: If the model has no such network, or one that does not draft far enough ahead.
        ModelError: If the network belongs to another model.
    """
    recipe, layout, target, resources = context.recipe, context.layout, context.target, context.resources
    model, settings = draft_model_of(context) if kind == "model" else (None, context.samplings)
    if greedy_as_warm:
        settings = change_each(settings, lambda s: replace(s, temperature=s.temperature or 1.0))
    if model is not None:
        if recipe.info.tree and not isinstance(model, TreeTarget):
            raise ArgumentError(f"recipes with a tree are not possible here: {type(model).__name__} reads windows only")
        return ModelRunner(model, TokenSampler(settings, layout.constraint, target.device))
    if kind not in resources.heads:
        raise ArgumentError(
            f"recipe '{recipe}' needs a drafter of kind {kind!r}, and this model has none; train one with "
            f"`mmspec train-drafter --kind {kind}` and pass its folder as drafter= to mmspec.load, or as --drafter"
        )
    head, network = resources.heads[kind], context.networks[kind]
    frames = network.frames
    if not isinstance(target, FrameFeatureTarget if frames else FeatureTarget):
        features = "features of frames" if frames else "features"
        raise ArgumentError(
            f"recipe '{recipe}' is not possible here: {type(target).__name__} does not provide {features}"
        )
    if head.vocab_size != target.vocab_size:
        raise ModelError(
            f"drafter has a vocabulary of {head.vocab_size} tokens, the model {target.vocab_size}; they must match"
        )
    depth = int(recipe.knobs["refreshed"]) if recipe.knobs.get("refresh") == kind else recipe.depth
    sampler = TokenSampler(settings, layout.constraint, target.device)
    must, members = "a mmspec.drafters.draft_runner.DraftRunner", has("calls", "root", "nodes", "observe")
    build = resolve(network.runner)
    found: DraftRunner = checked_call(
        f"the runner of the head {kind!r}", build, head, context, sampler, depth, must=must, fits=members
    )
    return found
