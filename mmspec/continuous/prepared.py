"""Rows of continuous tokens that are ready to be decoded as a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec.continuous.run import build_latent_rule
from mmspec.continuous.sampler import LatentHead, LatentSampler
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter
from mmspec.decoding.target import Target
from mmspec.engine import running_batch, window_policy
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
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
    """

    target: Target
    head: LatentHead
    layout: Layout
    resources: DraftResources
    limits: Sequence[int] | None = None
    recipe: Recipe | None = None
    tokens: Callable[[Tensor], Tensor] | None = None

    def batch(self, recipe: Recipe, seeds: Sequence[int]) -> RunningBatch:
        """The batch, before its first token.

        Raises:
            ArgumentError: If the recipe is for discrete tokens, or begins with more than one token without drafts.
        """
        target, layout, resources = self.target, self.layout, self.resources
        rule = build_latent_rule(recipe)
        if recipe.info.drafts and rule.plain_tokens(layout.length) > 1:
            raise ArgumentError(f"recipe '{recipe}' begins without drafts, which is not possible in engines")
        state = BatchState(seeds, layout, recipe.window, target.device, self.limits)
        sampler = LatentSampler(self.head, CounterRNG(seeds, target.device), rule, layout.length)
        policy = window_policy(recipe, (), len(seeds), resources, layout.length, layout.may_end)
        meter = Meter(target.device, len(seeds))
        return running_batch(target, recipe, rule, sampler, state, (), resources, policy, meter)
