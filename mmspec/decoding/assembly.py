"""Assembles a batch to decode: drafter, acceptance rule, sampler and window policy of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.default_window import window_of
from mmspec.decoding.foreign_parts import checked_drafter, checked_rule
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.resources import DraftingContext, DraftResources
from mmspec.decoding.stats import Meter
from mmspec.decoding.step import UNWATCHED, OnStep, Watch
from mmspec.decoding.target import Target, TreeTarget
from mmspec.decoding.window_policy import FixedWindow, WindowPolicy
from mmspec.decoding.windows import Windows
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError, PluginError
from mmspec.knobs import LARGEST
from mmspec.recipes import Recipe
from mmspec.registry import RULES, heads, refreshes, starts
from mmspec.sampling.acceptance import Accept, PerCodebook
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import Sampler
from mmspec.ways_to_draft import RECIPES, ways_to_draft

if TYPE_CHECKING:
    from mmspec.codebook import Codebook

NO_RESOURCES = DraftResources()


@dataclass(frozen=True)
class PreparedRows:
    """Rows that one target decodes, token by token or column by column; a `mmspec.batching.request.PreparedBatch`.

    Attributes:
        target: The model with the prompts of the rows, before its prefill.
        layout: The sequences to generate.
        samplings: Sampling parameters, one per row.
        resources: The resources of the model for drafters.
        limits: The largest number of tokens of each row; None is the length of the layout.
        seeds: Seeds of the rows that replace those of their prompts; None keeps these.
    """

    target: Target
    layout: Layout
    samplings: Sequence[SamplingParams]
    resources: DraftResources
    limits: Sequence[int] | None = None
    seeds: Sequence[int] | None = None
    tokens: Callable[[Tensor], Tensor] | None = None
    recipe: Recipe | None = None

    def batch(self, recipe: Recipe, seeds: Sequence[int], watch: Watch = UNWATCHED) -> RunningBatch:
        target, layout, samplings, resources = self.target, self.layout, self.samplings, self.resources
        recipe = with_window(recipe, target)
        state = BatchState(self.seeds or seeds, layout, recipe.window, target.device, self.limits)
        sampler, rule = layout.sampler(samplings, target.device), build_rule(recipe, resources)
        policy = window_policy(recipe, samplings, len(seeds), resources, layout.length)
        meter = Meter(target.device, len(seeds), watch.measure_entropy, window=recipe.window)
        return running_batch(target, recipe, rule, sampler, state, samplings, resources, policy, meter, watch.on_step)


def running_batch(
    target: Target,
    recipe: Recipe,
    rule: Accept,
    sampler: Sampler,
    state: BatchState,
    samplings: Sequence[SamplingParams],
    resources: DraftResources,
    policy: WindowPolicy,
    meter: Meter,
    on_step: OnStep | None = None,
) -> RunningBatch:
    """A `RunningBatch` with the recipe's drafter, which is built with the resources of the model.

    Args:
        samplings: Sampling parameters, one per row; empty for vectors.

    Raises:
        ArgumentError: If the recipe needs a resource that the model does not provide.
        PluginError: If the target does not name what it holds per row.
    """
    check_target(target)
    drafter = None
    if recipe.info.drafts:
        rows = len(state.ids)
        if recipe.info.tree:
            from mmspec.decoding.no_gain import tell_of_trees

            tell_of_trees(recipe, target)
        drafter = build_drafter(recipe, state.layout, target, samplings, resources, sampler, rows)
    windows = windows_of(recipe)
    return RunningBatch(target, drafter, rule, sampler, state, policy, meter, on_step, windows)


def windows_of(recipe: Recipe) -> type[Windows] | None:
    """The windows of a recipe with trees; None for others, see `RunningBatch`."""
    if not recipe.info.tree:
        return None
    from mmspec.decoding.trees import Trees  # what most recipes do without

    return Trees


def check_target(target: Target) -> None:
    """Checks that a target names what it holds per row.

    Raises:
        PluginError: If it does not.
    """
    if not hasattr(target, "ROWS") and not hasattr(target, "select_rows"):
        raise PluginError(
            f"{type(target).__name__} has no ROWS; name the attributes that hold something per row, or () if there are "
            "none: see mmspec.decoding.rows"
        )


def build_drafter(
    recipe: Recipe,
    layout: Layout,
    target: Target,
    samplings: Sequence[SamplingParams],
    resources: DraftResources,
    sampler: Sampler,
    batch_size: int,
) -> Any:
    """Builds the drafter of a recipe with the recipe's builder for the layout's kind of token.

    The arguments are those of a `DraftingContext`, which the builder gets.

    Raises:
        ArgumentError: If the recipe does not support this kind of token, or the target does not read trees.
        PluginError: If the builder cannot be loaded, or does not return a drafter.
    """
    builder = recipe.info.builders.get(layout.kind)
    if builder is None:
        kind = {"tokens": "tokens", "columns": "columns of codes", "latents": "vectors"}[layout.kind]
        raise ArgumentError(
            f"recipe '{recipe}' is not possible here: this model generates {kind}; the recipes for those are "
            f"{', '.join(name for name, info in ways_to_draft().usable().items() if info.supports(layout.kind))}"
        )
    if recipe.info.tree and not isinstance(target, TreeTarget):
        raise ArgumentError(f"recipes with a tree are not possible here: {type(target).__name__} reads windows only")
    known = heads().usable(), starts().usable(), refreshes().usable()
    context = DraftingContext(recipe, layout, target, samplings, resources, sampler, batch_size, *known)
    if recipe.info is RECIPES.get(recipe.parts[0]):
        return resolve(builder)(context)
    return checked_drafter(builder, context)


def build_rule(recipe: Recipe, resources: DraftResources) -> Accept:
    """Builds the acceptance rule of a recipe, with its knobs set.

    Raises:
        ArgumentError: If the rule is for tokens that are vectors.
        PluginError: If it is one of another package, whose factory returns no function.
    """
    if recipe.rule.continuous:
        raise ArgumentError(
            f"recipe {recipe.name!r} uses the rule {recipe.rule_name!r}, which is for tokens that are vectors; the "
            "tokens of this model are ids; see 'mmspec ls rules'"
        )
    if recipe.rule.takes_codebook and resources.codebooks is not None:
        return PerCodebook([_built(recipe, codebook, resources) for codebook in resources.codebooks()])
    codebook = resources.codebook() if recipe.rule.takes_codebook and resources.codebook is not None else None
    return _built(recipe, codebook, resources)


def _built(recipe: Recipe, codebook: Codebook | None, resources: DraftResources) -> Accept:
    """The rule for one codebook."""
    rule = recipe.rule.build(recipe.knobs, codebook, resources.heads)
    return rule if recipe.rule is RULES.get(recipe.rule_name) else checked_rule(recipe.rule_name, rule)


def with_window(recipe: Recipe, target: Any) -> Recipe:
    """The recipe with the window that it has for a target, or for what reads the windows, before drafters are built."""
    return recipe.with_knobs(window=window_of(recipe, target)) if recipe.window_by_model else recipe


def window_policy(
    recipe: Recipe,
    samplings: Sequence[SamplingParams],
    batch_size: int,
    resources: DraftResources,
    length: int,
) -> WindowPolicy:
    """The window policy of a recipe.

    With `window=auto`, runs with the same recipe, batch size and guidance share one `AdaptiveWindow`.

    Args:
        recipe: How to decode, see `with_window`.
        samplings: Sampling parameters, one per row; empty for vectors.
        batch_size: Number of rows.
        resources: Holds the policies of earlier runs.
        length: Tokens per row in this run.
    """
    if not recipe.auto:
        return FixedWindow(recipe.window) if recipe.info.drafts else FixedWindow(1, plain_steps=length)
    from mmspec.decoding.adaptive_window import AdaptiveWindow  # what most recipes do without

    head = resources.heads.get(recipe.info.runner)
    largest = min(resources.largest_window or LARGEST, LARGEST)
    largest = min(largest, getattr(head, "count", LARGEST) + 1)  # Medusa and Hydra heads are so many
    name = str(recipe) if resources.largest_window is None else f"{recipe} up to {largest}"
    key = name, batch_size, any(s.guidance_scale != 1 for s in samplings)
    policy = resources.adaptive_windows.setdefault(key, AdaptiveWindow(largest))
    assert isinstance(policy, AdaptiveWindow)
    policy.begin(length, batch_size)
    return policy
