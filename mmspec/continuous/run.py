"""From a recipe to latents: what `mmspec.engine.run` is to tokens that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from torch import Tensor

from mmspec.continuous.sampler import Account, Head, LatentRule, LatentSampler
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
    """The cost of one run; `acceptance` counts every draft that was tested, also where a rule ends no window.

    Attributes:
        distance: How far kept drafts lay from the target's own latent of the same noise, root mean square over the
            coordinates, on average.
        farthest: At most. With a rule that adds noise of its own, that noise is in it.
    """

    distance: float = 0.0
    farthest: float = 0.0


@dataclass(frozen=True)
class Latents:
    """Tokens float32 [B, N, D + M], latents and their marks, and what they cost."""

    tokens: Tensor
    stats: LatentStats


def run_latents(
    target: Target,
    head: Head,
    recipe: Recipe,
    layout: Layout,
    seeds: Sequence[int],
    resources: DraftResources = NO_RESOURCES,
    on_step: OnStep | None = None,
) -> Latents:
    """Decodes a batch of rows whose tokens are vectors.

    Args:
        target: The backbone with its prompts, one per row; its `forward` returns what `head` reads.
        head: Turns the backbone's outputs into distributions of latents.
        recipe: `plain`, or a way of drafting and a rule, such as `scd+smoothed:sigma=0.1`.
        layout: The sequence, with `cell` (D + M,) and a floating-point `dtype`.
        seeds: One per row. A row's latents depend on its own seed and prompt alone, not on the batch.
        resources: What the model provides for drafters.
        on_step: Called after every target call.

    Raises:
        ArgumentError: If the recipe is for tokens that are numbers, or needs a resource that the model lacks.
    """
    rule = build_latent_rule(recipe)
    meter = Meter(target.device, len(seeds))
    state = BatchState(seeds, layout, recipe.window, target.device)
    sampler = LatentSampler(head, CounterRNG(seeds, target.device), rule, layout.length)
    # Guidance and the head's steps change what a call costs; a window controller forgets the old cost in a few calls.
    policy = window_policy(recipe, (), len(seeds), resources, layout.length)
    alone = rule.alone(layout.length)
    calls = run_rows(target, recipe, rule, sampler, state, (), resources, policy, meter, on_step, alone)
    return Latents(state.result().clone(), with_account(meter.stats(calls), sampler.account))


def build_latent_rule(recipe: Recipe) -> LatentRule:
    """The rule of a recipe, with its knobs set; `plain` alone takes what the head makes, as published."""
    if not recipe.info.drafts and recipe.rule_name == "exact":
        return Tolerance(0.0)
    known = [name for name, rule in rules().items() if rule.continuous]
    if not recipe.rule.continuous:
        ways = ", ".join(f"{recipe.parts[0]}+{name}" for name in known)
        raise ArgumentError(
            f"recipe {recipe.name!r} accepts by the rule {recipe.rule_name!r}, which is for tokens that are numbers, "
            f"and this model's are vectors; use {ways}, or plain"
        )
    rule = recipe.rule.build(recipe.knobs, None)
    if not isinstance(rule, LatentRule):
        raise ArgumentError(f"rule {recipe.rule_name!r} says it is for vectors, but does not make a LatentRule")
    return rule


def with_account(stats: Stats, account: Account) -> LatentStats:
    """The loop's stats with what the distribution has counted."""
    given = {field.name: getattr(stats, field.name) for field in fields(Stats)}
    pairs = zip(account.kept, account.tested, strict=True)
    given["acceptance"] = [float(kept / tested) if tested else None for kept, tested in pairs]
    return LatentStats(**given, distance=account.distance / max(int(account.kept.sum()), 1), farthest=account.farthest)
