"""From a recipe to latents: what `mmspec.engine.run` is to tokens that are numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from mmspec.continuous.jacobi import LatentJacobi
from mmspec.continuous.sampler import Account, Head, LatentRule, LatentSampler
from mmspec.continuous.tolerance import Tolerance
from mmspec.decoding.adaptive_window import AdaptiveWindow, AdaptiveWindows, decode_auto
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import Drafter, OnStep, decode_plain, decode_steps, decode_window
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.target import Target
from mmspec.drafters.draft_model import ModelDrafter
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.registry import rules
from mmspec.sampling.rng import CounterRNG


@dataclass(frozen=True)
class Sibling:
    """A model that drafts for another: a target with the same prompts, and its head."""

    target: Target
    head: Head


@dataclass(frozen=True)
class LatentDraftResources:
    """What a model of latents brings along for its drafters.

    Attributes:
        draft_model: Makes a smaller sibling, for the recipe `draft`.
        first_layers: Makes one of the target's first so many layers, for the recipe `layer-skip`.
        few_steps: Makes the target again with a head of so many steps, for the recipe `few-steps`.
        adaptive_windows: What earlier runs have taught about windows, for `window=auto`; see
            `mmspec.decoding.adaptive_window.adaptive_windows_of`.
    """

    draft_model: Callable[[], Sibling] | None = None
    first_layers: Callable[[int], Sibling] | None = None
    few_steps: Callable[[int], Sibling] | None = None
    adaptive_windows: AdaptiveWindows = field(default_factory=dict)


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
    resources: LatentDraftResources = LatentDraftResources(),
    on_step: OnStep | None = None,
) -> Latents:
    """Decodes a batch of rows.

    Args:
        target: The backbone with its prompts given, one per row; its `forward` gives what `head` reads.
        recipe: `plain`, or a way of drafting and a rule, such as `scd+smoothed:sigma=0.1`.
        layout: Of `cell` (D + M,) and a floating-point `dtype`.
        seeds: One per row. A row's latents depend on its own seed and prompt alone, not on the batch.
        resources: What drafters may use.
        on_step: Called after every target call.

    Raises:
        ArgumentError: When the recipe is for tokens that are numbers, or needs a resource the model does not have.
    """
    rule = build_latent_rule(recipe)
    meter = Meter(target.device, len(seeds))
    rows = BatchState(seeds, layout, recipe.window, target.device)

    def make_sampler(head: Head) -> LatentSampler:
        return LatentSampler(head, CounterRNG(seeds, target.device), rule, layout.length)

    ours, calls = make_sampler(head), 0
    with torch.inference_mode():
        if recipe.info.drafter == "none":
            decode_plain(target, ours, rows, meter, on_step)
        else:
            drafter = build_latent_drafter(recipe, ours, make_sampler, resources)
            alone = rule.alone(layout.length)
            if recipe.auto:
                # Guidance and the head's steps change what a call costs; a pace forgets the old cost in a few calls.
                adaptive_window = resources.adaptive_windows.setdefault(
                    (str(recipe), len(seeds), False), AdaptiveWindow()
                )
                decode_auto(target, drafter, rule, ours, rows, adaptive_window, meter, on_step, alone=alone)
            else:
                going = decode_steps(target, ours, rows, alone, meter, on_step, drafter)
                while going:
                    going = decode_window(target, drafter, rule, ours, rows, recipe.window, meter, on_step)
            calls = drafter.calls
    meter.clock.lap("other")
    return Latents(rows.result().clone(), with_account(meter.stats(calls), ours.account))


def build_latent_rule(recipe: Recipe) -> LatentRule:
    """The rule of a recipe, with its knobs set; `plain` alone takes what the head makes, as published."""
    if recipe.name == "plain":
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


def build_latent_drafter(
    recipe: Recipe, ours: LatentSampler, make_sampler: Callable[[Head], LatentSampler], resources: LatentDraftResources
) -> Drafter:
    """The drafter that a recipe asks for; `ours` is the target distribution, `make_sampler` makes one of another head."""
    kind, knobs = recipe.info.drafter, recipe.knobs
    if kind == "jacobi":
        start = str(knobs["start"])
        return LatentJacobi(ours, str(knobs.get("coupling", "fresh")), "hold" if start == "auto" else start)
    sibling: Sibling | None = None
    if kind == "model" and knobs.get("layers") and resources.first_layers is not None:
        sibling = resources.first_layers(int(knobs["layers"]))
    elif kind == "model" and resources.draft_model is not None:
        sibling = resources.draft_model()
    elif kind == "few-steps" and resources.few_steps is not None:
        sibling = resources.few_steps(int(knobs["steps"]))
    if sibling is None:
        given = (
            ("draft", resources.draft_model),
            ("layer-skip", resources.first_layers),
            ("few-steps", resources.few_steps),
        )
        possible = ["sjd", "scd", *(name for name, resource in given if resource is not None)]
        raise ArgumentError(
            f"recipe {recipe.name!r} is not possible with this model of latents; it can be drafted for by "
            f"{', '.join(possible)}"
        )
    return ModelDrafter(sibling.target, make_sampler(sibling.head), 2 if ours.rule.truncates else recipe.window + 1)


def with_account(stats: Stats, account: Account) -> LatentStats:
    """The loop's stats with what the distribution has counted."""
    given = {field.name: getattr(stats, field.name) for field in fields(Stats)}
    pairs = zip(account.kept, account.tested, strict=True)
    given["acceptance"] = [float(kept / tested) if tested else None for kept, tested in pairs]
    return LatentStats(**given, distance=account.distance / max(int(account.kept.sum()), 1), farthest=account.farthest)
