"""Rows of continuous tokens, ready to be decoded as a batch; and a run of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from mmspec.continuous.sampler import LatentHead, LatentRule, LatentSampler
from mmspec.continuous.stats import with_counter
from mmspec.continuous.tolerance import Tolerance
from mmspec.decoding.assembly import running_batch, window_policy, with_window
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter
from mmspec.decoding.step import UNWATCHED, OnStep, Step, Watch
from mmspec.decoding.target import Target
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.registry import rules
from mmspec.sampling.rng import CounterRNG


@dataclass(frozen=True)
class PreparedLatents:
    """Rows of a model of latents; a `mmspec.batching.request.PreparedBatch`.

    Attributes:
        target: The backbone with the prompts of the rows, before its prefill.
        head: Its head, which must treat all rows alike: rows that join get the head of the batch.
        layout: The sequences to generate.
        resources: The resources of the model for drafters.
        limits: The largest number of tokens of each row; None is the length of the layout.
        recipe: None: requests keep their recipes.
        tokens: None: a row's tokens are given out as they are.
        observe: Called after every target call, before what the rows' caller asks for.
    """

    target: Target
    head: LatentHead
    layout: Layout
    resources: DraftResources
    limits: Sequence[int] | None = None
    recipe: Recipe | None = None
    tokens: Callable[[Tensor], Tensor] | None = None
    observe: OnStep | None = None

    def batch(self, recipe: Recipe, seeds: Sequence[int], watch: Watch = UNWATCHED) -> RunningBatch:
        """The batch, before its first token.

        Raises:
            ArgumentError: If the recipe is for discrete tokens, or needs a resource that the model does not have, or if
                entropies are asked for.
        """
        if watch.measure_entropy:
            raise ArgumentError("measure_entropy is not possible here: a vector's distribution has no entropy in bits")
        target, layout, resources = self.target, self.layout, self.resources
        recipe = with_window(recipe, target)
        rule = build_latent_rule(recipe)
        state = BatchState(seeds, layout, recipe.window, target.device, self.limits)
        sampler = LatentSampler(self.head, CounterRNG(seeds, target.device), rule, layout.length)
        policy = window_policy(recipe, (), len(seeds), resources, layout.length)
        meter = Meter(target.device, len(seeds), window=recipe.window)
        observers = [each for each in (self.observe, watch.on_step) if each is not None]
        on_step = partial(_in_turn, observers) if observers else None
        batch = running_batch(target, recipe, rule, sampler, state, (), resources, policy, meter, on_step)
        batch.first_tokens = rule.plain_tokens(layout.length)
        batch.complete_stats = partial(with_counter, counter=sampler.counter)
        return batch


def _in_turn(observers: Sequence[OnStep], step: Step) -> None:
    for observe in observers:
        observe(step)


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
