"""Runs a recipe on a model of latents, as `mmspec.engine.run` does for discrete tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

from torch import Tensor

from mmspec.continuous.sampler import AcceptanceCounter, LatentHead, LatentRule, LatentSampler
from mmspec.continuous.tolerance import Tolerance
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.target import Target
from mmspec.engine import NO_RESOURCES, run_rows, window_policy
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.registry import rules
from mmspec.sampling.rng import CounterRNG


@dataclass
class LatentStats(Stats):
    """Statistics of one run. `acceptance` counts all tested drafts, also those after a rejected one.

    Attributes:
        distance: Mean distance of accepted drafts from the target's latent of the same noise: the root mean square over
            the coordinates.
        farthest: Largest such distance. The noise that a rule adds is part of it.
    """

    distance: float = 0.0
    farthest: float = 0.0

    def followed_by(self, other: Self) -> Self:
        mine, theirs = (
            sum((rate or 0.0) * count for rate, count in zip(one.acceptance, one.tested, strict=False))
            for one in (self, other)
        )
        distance = (self.distance * mine + other.distance * theirs) / max(mine + theirs, 1)
        both = super().followed_by(other)
        return replace(both, distance=distance, farthest=max(self.farthest, other.farthest))


@dataclass(frozen=True)
class Latents:
    """The result of a run.

    Attributes:
        tokens: Latents and their marks, float32 [B, N, D + M].
        stats: Statistics of the run.
    """

    tokens: Tensor
    stats: LatentStats


def run_latents(
    target: Target,
    head: LatentHead,
    recipe: Recipe,
    layout: Layout,
    seeds: Sequence[int],
    resources: DraftResources = NO_RESOURCES,
    on_step: OnStep | None = None,
) -> Latents:
    """Decodes a batch of rows of continuous tokens.

    Args:
        target: The backbone with its prompts, one per row; `head` reads the output of its `forward`.
        head: The head of the target.
        recipe: `plain`, or a recipe with a rule for latents, such as `scd+smoothed:sigma=0.1`.
        layout: Layout with `cell` (D + M,) and a floating-point `dtype`.
        seeds: One per row. A row's latents depend only on its own seed and prompt, not on the batch.
        resources: The resources of the model for drafters.
        on_step: Called after every target call.

    Raises:
        ArgumentError: If the recipe is for discrete tokens, or needs a resource that the model does not have.
    """
    rule = build_latent_rule(recipe)
    meter = Meter(target.device, len(seeds))
    state = BatchState(seeds, layout, recipe.window, target.device)
    sampler = LatentSampler(head, CounterRNG(seeds, target.device), rule, layout.length)
    # Guidance and the head's steps change the cost of a call; the window controller adapts within a few calls.
    policy = window_policy(recipe, (), len(seeds), resources, layout.length, layout.may_end)
    plain_tokens = rule.plain_tokens(layout.length)
    calls = run_rows(target, recipe, rule, sampler, state, (), resources, policy, meter, on_step, plain_tokens)
    return Latents(state.result().clone(), with_counter(meter.stats(calls, state.truncated), sampler.counter))


def build_latent_rule(recipe: Recipe) -> LatentRule:
    """The rule of a recipe, with its knobs set; `plain` alone returns the head's latents as they are, as published.

    Raises:
        ArgumentError: If the rule is for discrete tokens.
    """
    if recipe.name == "plain":
        return Tolerance(0.0)
    known = [name for name, rule in rules().usable().items() if rule.continuous]
    if not recipe.rule.continuous:
        ways = ", ".join(f"{recipe.parts[0]}+{name}" for name in known)
        raise ArgumentError(
            f"recipe {recipe.name!r} uses the rule {recipe.rule_name!r}, which is for discrete tokens, "
            f"and this model has continuous tokens; use {ways}, or plain"
        )
    rule = recipe.rule.build(recipe.knobs, None)
    if not isinstance(rule, LatentRule):
        raise ArgumentError(
            f"rule {recipe.rule_name!r} is registered as continuous and must make a LatentRule, not a "
            f"{type(rule).__name__}"
        )
    return rule


def with_counter(stats: Stats, counter: AcceptanceCounter) -> LatentStats:
    """The statistics of the loop together with those of the sampler."""
    values = {field.name: getattr(stats, field.name) for field in fields(Stats)}
    pairs = zip(counter.accepted, counter.tested, strict=True)
    values["tested"] = counter.tested.tolist()
    values["acceptance"] = [float(accepted / tested) if tested else None for accepted, tested in pairs]
    mean = counter.distance / max(int(counter.accepted.sum()), 1)
    return LatentStats(**values, distance=mean, farthest=counter.farthest)
