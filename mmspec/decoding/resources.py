"""What a model provides for its drafters, and what a recipe's builder gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mmspec.decoding.adaptive_window import AdaptiveWindows
from mmspec.decoding.layout import Layout
from mmspec.decoding.target import Target
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import Sampler

if TYPE_CHECKING:
    from mmspec.codebook import Codebook
    from mmspec.continuous.sampler import LatentModel
    from mmspec.drafters.jacobi import ContinuationDrafter
    from mmspec.drafters.ngram import Table
    from mmspec.heads.checkpoint import Head
    from mmspec.recipes import Recipe


@dataclass(frozen=True)
class DraftResources:
    """What a model provides for its drafters; a recipe that needs a missing one is refused.

    Attributes:
        table: N-gram table, for the recipe `table` and for the tokens that Jacobi recipes start from.
        draft_model: Makes a smaller model with the same prompts, wrapped as a target.
        draft_sampling: Sampling parameters of that model, one per row. If empty, early exits draft at the rows' own
            temperature, top-k and top-p.
        codebook: The vectors of the tokens, for rules that compare tokens.
        heads: Networks on the target's features, by the name of the recipe that drafts with them.
        adaptive_windows: Window controllers of earlier runs, for `window=auto`; see
            `mmspec.decoding.adaptive_window.adaptive_windows_of`.
        guided_draft_model: Makes the draft model with guidance, if it supports guidance.
        guesses: Makes the model's own continuation drafter, used wherever the table would be.
        codebooks: The vectors of each codebook, for columns.
        largest_window: The widest window that `window=auto` may choose; None leaves that to the recipe.
        latent_models: For tokens that are vectors: makes a model that drafts, by the name of the recipe (`draft`,
            `layer-skip`, `few-steps`). The argument is the number of layers or steps, 0 for a model as it is.
    """

    table: Table | None = None
    draft_model: Callable[[], Target] | None = None
    draft_sampling: Sequence[SamplingParams] = ()
    codebook: Callable[[], Codebook | None] | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    adaptive_windows: AdaptiveWindows = field(default_factory=dict)
    guided_draft_model: Callable[[], Target] | None = None
    guesses: Callable[[], ContinuationDrafter] | None = None
    codebooks: Callable[[], Sequence[Codebook]] | None = None
    largest_window: int | None = None
    latent_models: Mapping[str, Callable[[int], LatentModel]] = field(default_factory=dict)


@dataclass(frozen=True)
class DraftingContext:
    """What a recipe's builder makes its drafter from.

    A builder is a function of a context that returns a `mmspec.decoding.loop.Drafter`, or, for a recipe that drafts
    trees, a `mmspec.decoding.tree_loop.TreeDrafter`. It raises `ArgumentError` if the model lacks what it needs.

    Attributes:
        recipe: With its knobs set.
        layout: The sequence to generate.
        target: The model with its prompts, one per row.
        samplings: Sampling parameters, one per row; empty for tokens that are vectors.
        resources: What the model provides.
        sampler: The target's sampler; tokens that are vectors are drafted with its noise.
        batch_size: Number of rows, B.
    """

    recipe: Recipe
    layout: Layout
    target: Target
    samplings: Sequence[SamplingParams]
    resources: DraftResources
    sampler: Sampler
    batch_size: int
