"""From a recipe to tokens: puts target, drafter, rule and distribution together and runs the loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.decoding.adaptive_window import AdaptiveWindow, decode_auto
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import Drafter, OnStep, decode, decode_plain
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.stats import Meter, Stats
from mmspec.decoding.target import EarlyExit, FeatureTarget, Target, TreeTarget
from mmspec.decoding.tree_loop import TreeDrafter, decode_tree
from mmspec.drafters.chain import ChainDrafter
from mmspec.drafters.columns.builder import build_column_drafter, column_sampler
from mmspec.drafters.coupling import COUPLINGS
from mmspec.drafters.draft_model import ModelDrafter
from mmspec.drafters.draft_runner import DraftRunner
from mmspec.drafters.eagle import EagleRunner
from mmspec.drafters.early_exit import EarlyExitTarget
from mmspec.drafters.init_drafter import InitDrafter
from mmspec.drafters.jacobi import ContinuationDrafter, Jacobi
from mmspec.drafters.medusa import MedusaRunner
from mmspec.drafters.model_runner import ModelRunner
from mmspec.drafters.recycle import Recycle
from mmspec.drafters.token_init import TokenInit, random_token, repeat_left, repeat_up
from mmspec.drafters.tree.dyspec import DySpecDrafter
from mmspec.drafters.tree.eagle2 import DynamicTreeDrafter
from mmspec.drafters.tree.ngram_tree import NGramTreeDrafter
from mmspec.drafters.tree.specinfer import SIBLING_SAMPLERS, StaticTreeDrafter
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.eagle import EagleHead
from mmspec.knobs import branches
from mmspec.recipes import LARGEST, RUNNERS, Recipe
from mmspec.rules.per_codebook import PerCodebook
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.k_seq import verify_drafts
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import Sampler, TokenSampler
from mmspec.sampling.tree_rejection import verify_tree


@dataclass(frozen=True)
class Decoded:
    """Tokens int64 [B, N] and what they cost."""

    tokens: Tensor
    stats: Stats


def run(
    target: Target,
    recipe: Recipe,
    layout: Layout,
    samplings: Sequence[SamplingParams],
    seeds: Sequence[int],
    resources: DraftResources = DraftResources(),
    on_step: OnStep | None = None,
    measure_entropy: bool = False,
) -> Decoded:
    """Decodes a batch of rows.

    Args:
        target: The model with its prompts given, one per row.
        recipe: How to decode.
        layout: The sequence to be made.
        samplings: One per row. A row's tokens depend on its own seed and prompt alone, not on the batch.
        seeds: As for `samplings`.
        resources: What drafters may use.
        on_step: Called after every target call; what it raises ends the run.
        measure_entropy: Also measure the entropy of the target distribution along the way.

    Raises:
        ArgumentError: When the recipe needs a resource the model does not bring.
    """
    meter = Meter(target.device, len(seeds), measure_entropy)
    rows = BatchState(seeds, layout, recipe.window, target.device)
    flat = TokenSampler(samplings, layout.constraint, target.device)
    sampler: Sampler = column_sampler(samplings, layout, target) if layout.cell else flat
    rule, calls = build_rule(recipe, resources), 0
    with torch.inference_mode():
        if recipe.info.tree and not layout.cell:
            tree_drafter = build_tree_drafter(recipe, layout, target, samplings, resources)
            test = verify_drafts if recipe.info.drafter == "k-seq" else verify_tree
            decode_tree(reader_of_trees(target), tree_drafter, rule, flat, rows, meter, on_step, test)
            calls = tree_drafter.calls
        elif (drafter := build_drafter(recipe, layout, target, samplings, resources)) is None:
            decode_plain(target, sampler, rows, meter, on_step)
        elif recipe.auto:
            decode_auto(
                target, drafter, rule, sampler, rows, find_adaptive_window(recipe, samplings, resources), meter, on_step
            )
            calls = drafter.calls
        else:
            decode(target, drafter, rule, sampler, rows, recipe.window, meter, on_step)
            calls = drafter.calls
    meter.clock.lap("other")
    return Decoded(rows.result().clone(), meter.stats(calls))


def find_adaptive_window(
    recipe: Recipe, samplings: Sequence[SamplingParams], resources: DraftResources
) -> AdaptiveWindow:
    """What earlier runs like this one have taught about windows."""
    head = resources.heads.get(recipe.info.runner)
    largest = LARGEST if head is None or isinstance(head, EagleHead) else min(LARGEST, head.count + 1)
    known = str(recipe), len(samplings), any(s.guidance_scale != 1 for s in samplings)
    return resources.adaptive_windows.setdefault(known, AdaptiveWindow(largest))


def build_rule(recipe: Recipe, resources: DraftResources) -> Accept:
    """The acceptance rule of a recipe, with its knobs set.

    Raises:
        ArgumentError: When it is for vectors.
    """
    if recipe.rule.continuous:
        raise ArgumentError(
            f"recipe {recipe.name!r} accepts by the rule {recipe.rule_name!r}, which is for tokens that are vectors, "
            "and this model's are numbers; see 'mmspec ls rules'"
        )
    if recipe.rule.takes_codebook and resources.codebooks is not None:
        return PerCodebook([recipe.rule.build(recipe.knobs, codebook) for codebook in resources.codebooks()])
    codebook = resources.codebook() if recipe.rule.takes_codebook and resources.codebook is not None else None
    return recipe.rule.build(recipe.knobs, codebook)


def build_drafter(
    recipe: Recipe, layout: Layout, target: Target, samplings: Sequence[SamplingParams], resources: DraftResources
) -> Drafter | None:
    """The drafter a recipe asks for, for rows with these settings; None for plain decoding."""
    if layout.cell:
        return build_column_drafter(recipe, layout, target, samplings, resources)
    kind = recipe.info.drafter
    if kind == "none":
        return None
    if kind == "model":
        model, settings = find_model(recipe, target, samplings, resources)
        return ModelDrafter(model, TokenSampler(settings, layout.constraint, target.device))
    if kind == "chain":
        runner = build_runner(recipe.info.runner, recipe, layout, target, samplings, resources)
        return ChainDrafter(runner, target.device)
    if kind in ("table", "recycle"):
        return Jacobi(build_guesses(kind, recipe, layout, target, samplings, resources), None, target.vocab_size)
    coupling = COUPLINGS[str(recipe.knobs.get("coupling", "fresh"))]
    start = str(recipe.knobs["start"])
    if start in RUNNERS:
        runner = build_runner(start, recipe, layout, target, samplings, resources)
        return Jacobi(ChainDrafter(runner, target.device), coupling, target.vocab_size)
    if start == "auto":
        start = "table" if (resources.table or resources.guesses) is not None else "up" if layout.width else "left"
    return Jacobi(build_guesses(start, recipe, layout, target, samplings, resources), coupling, target.vocab_size)


def build_guesses(
    start: str,
    recipe: Recipe,
    layout: Layout,
    target: Target,
    samplings: Sequence[SamplingParams],
    resources: DraftResources,
) -> ContinuationDrafter:
    """The guesses of that name."""
    if start == "table" and resources.guesses is not None:
        return resources.guesses()
    return InitDrafter(find_start(start, recipe, layout, target, len(samplings), resources))


def build_tree_drafter(
    recipe: Recipe, layout: Layout, target: Target, samplings: Sequence[SamplingParams], resources: DraftResources
) -> TreeDrafter:
    """The drafter that a recipe with a tree asks for."""
    kind, knobs = recipe.info.drafter, recipe.knobs
    if kind == "table":
        if resources.table is None:
            raise ArgumentError(f"recipe '{recipe}' needs an n-gram table, and this model brings none")
        return NGramTreeDrafter(resources.table, branches(str(knobs["branch"])), target.vocab_size, target.device)
    runner = build_runner(recipe.info.runner, recipe, layout, target, samplings, resources)
    if kind == "sampled":
        return DySpecDrafter(runner, recipe.window - 1, int(knobs["depth"]))
    if kind == "k-seq":
        branch = [int(knobs["drafts"])] + [1] * (int(knobs["length"]) - 1)
        return StaticTreeDrafter(runner, branch, SIBLING_SAMPLERS["independent"], target.device)
    if kind in SIBLING_SAMPLERS:
        return StaticTreeDrafter(runner, branches(str(knobs["branch"])), SIBLING_SAMPLERS[kind], target.device)
    return DynamicTreeDrafter(runner, recipe.window - 1, int(knobs["depth"]), int(knobs["top"]), target.vocab_size)


def build_runner(
    kind: str,
    recipe: Recipe,
    layout: Layout,
    target: Target,
    samplings: Sequence[SamplingParams],
    resources: DraftResources,
) -> DraftRunner:
    """What gives the distributions that a recipe's drafts are drawn from: "model", "eagle" or "medusa".

    Raises:
        ArgumentError: When the model brings no such network, or one that cannot draft so far ahead.
        ModelError: When it is for another model.
    """
    dynamic = recipe.info.drafter == "dynamic"

    def sampler(settings: Sequence[SamplingParams]) -> TokenSampler:
        # A dynamic tree only measures how likely a token is, which the one-hot distribution of a greedy row does not tell.
        warm = [replace(s, temperature=s.temperature or 1.0) for s in settings] if dynamic else settings
        return TokenSampler(warm, layout.constraint, target.device)

    if kind == "model":
        model, settings = find_model(recipe, target, samplings, resources)
        return ModelRunner(reader_of_trees(model) if recipe.info.tree else model, sampler(settings))
    if kind not in resources.heads:
        raise ArgumentError(
            f"recipe {recipe.name!r} needs a drafter of kind {kind!r}, and this model brings none; train one with "
            f"`mmspec train-drafter --kind {kind}` and name its folder as drafter"
        )
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(f"recipe {recipe.name!r} is not possible here: {type(target).__name__} shows no features")
    head = resources.heads[kind]
    if head.vocab_size != target.vocab_size:
        raise ModelError(
            f"drafter has {head.vocab_size} tokens, the model {target.vocab_size}; they do not belong together"
        )
    if isinstance(head, EagleHead):
        return EagleRunner(head, target, sampler(samplings), layout.length, recipe.window)
    if recipe.depth > head.count and not recipe.auto:
        raise ArgumentError(f"recipe '{recipe}' drafts {recipe.depth} tokens ahead, and there are {head.count} heads")
    return MedusaRunner(head, target, sampler(samplings))


def find_model(
    recipe: Recipe, target: Target, samplings: Sequence[SamplingParams], resources: DraftResources
) -> tuple[Target, list[SamplingParams]]:
    """The model that drafts, and how its tokens are drawn: a smaller one, or the target's own first layers.

    Raises:
        ArgumentError: When there is none, or none with guidance where that is asked for.
    """
    layers, scale = int(recipe.knobs["layers"]), float(recipe.knobs["guidance"])
    own = [replace(s, guidance_end=None) for s in samplings]
    settings = [replace(s, guidance_scale=scale) for s in resources.draft_sampling or own]
    if layers:
        return EarlyExitTarget(target, EarlyExit(layers, guided=scale != 1)), settings
    if resources.draft_model is None:
        raise ArgumentError(f"recipe {recipe.name!r} needs a draft model, and this model brings none")
    make = resources.draft_model if scale == 1 else resources.guided_draft_model
    if make is None:
        raise ArgumentError(f"recipe '{recipe}' needs a draft model with guidance; leave guidance at 1")
    return make(), settings


def reader_of_trees(target: Target) -> TreeTarget:
    """The same target.

    Raises:
        ArgumentError: When it does not read trees.
    """
    if not isinstance(target, TreeTarget):
        raise ArgumentError(f"recipes with a tree are not possible here: {type(target).__name__} reads windows only")
    return target


def find_start(
    name: str, recipe: Recipe, layout: Layout, target: Target, batch_size: int, resources: DraftResources
) -> TokenInit | Recycle:
    """The start-token guess of that name."""
    above = repeat_up if layout.width else repeat_left
    if name == "recycle":
        return Recycle(batch_size, target.vocab_size, above, target.device)
    if name == "table":
        if resources.table is None:
            raise ArgumentError(f"recipe '{recipe}' needs an n-gram table, and this model brings none")
        return resources.table
    return {"left": repeat_left, "up": above, "random": random_token(target.vocab_size)}[name]
