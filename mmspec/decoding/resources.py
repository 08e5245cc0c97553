"""The resources that a model provides for drafters, and the context that a recipe's builder receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mmspec.decoding.drafter import ContinuationDrafter
from mmspec.decoding.layout import Layout
from mmspec.decoding.target import Target
from mmspec.decoding.window_policy import AdaptiveWindows
from mmspec.knobs import Value
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import Sampler

if TYPE_CHECKING:
    from mmspec.codebook import Codebook
    from mmspec.continuous.sampler import LatentModel
    from mmspec.drafters.ngram import Table
    from mmspec.drafters.recipe_info import Choice
    from mmspec.heads.head import Head
    from mmspec.heads.info import HeadInfo


@dataclass(frozen=True)
class DraftResources:
    """The resources that a model provides for drafters. A recipe that needs a missing one raises `ArgumentError`.

    Attributes:
        table: An n-gram table, for the recipe `table` and for token initialization in Jacobi recipes.
        draft_model: Creates a smaller model with the same prompts, wrapped as a target.
        draft_sampling: Sampling parameters of the draft model, one per row. If empty, early exits draft at the rows'
            own temperature, top-k and top-p.
        codebook: Returns the embedding vectors of the tokens, for rules that compare tokens.
        heads: Networks on the target's features, by the name of the recipe that drafts with them.
        adaptive_windows: The window policies of earlier runs, for `window=auto`; see
            `mmspec.decoding.window_policy.adaptive_windows_of`.
        guided_draft_model: Creates the draft model with guidance, if it supports guidance.
        continuation: Creates the model's own continuation drafter, which replaces the n-gram table wherever a recipe
            would use it.
        codebooks: Returns the embedding vectors of each codebook, for columns.
        largest_window: The widest window that `window=auto` may choose; None for the recipe's default.
        latent_models: For tokens that are vectors: creates a draft model, by the name of the recipe (`draft`,
            `layer-skip`, `few-steps`). The argument is the number of layers or steps, 0 for the unchanged model.
        models: Other models of the same tokens with the same prompts, by the name of the recipe that drafts with them;
            the drafter of the recipe says what each is.
    """

    table: Table | None = None
    draft_model: Callable[[], Target] | None = None
    draft_sampling: Sequence[SamplingParams] = ()
    codebook: Callable[[], Codebook | None] | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    adaptive_windows: AdaptiveWindows = field(default_factory=dict)
    guided_draft_model: Callable[[], Target] | None = None
    continuation: Callable[[], ContinuationDrafter] | None = None
    codebooks: Callable[[], Sequence[Codebook]] | None = None
    largest_window: int | None = None
    latent_models: Mapping[str, Callable[[int], LatentModel]] = field(default_factory=dict)
    models: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


class WayToDraft(Protocol):
    """What a recipe says of its way of drafting; see `mmspec.ways_to_draft.RecipeInfo`."""

    @property
    def runner(self) -> str: ...

    @property
    def tree(self) -> bool: ...


class ChosenRecipe(Protocol):
    """A recipe with its knobs set, as builders read it; see `mmspec.recipes.Recipe`."""

    @property
    def name(self) -> str: ...

    @property
    def knobs(self) -> Mapping[str, Value]: ...

    @property
    def info(self) -> WayToDraft: ...

    @property
    def window(self) -> int: ...

    @property
    def depth(self) -> int: ...

    @property
    def window_by_model(self) -> bool: ...

    @property
    def auto(self) -> bool: ...

    @property
    def auto_branch(self) -> bool: ...


@dataclass(frozen=True)
class DraftingContext:
    """The argument of a recipe's builder.

    A builder is a function that takes a context and returns a `mmspec.decoding.drafter.Drafter`, or, for a recipe that
    drafts trees, a `mmspec.decoding.trees.TreeDrafter`. It raises `ArgumentError` if the model lacks a resource
    that the drafter needs.

    Attributes:
        recipe: The recipe with its knobs set.
        layout: The sequence to generate.
        target: The model with its prompts, one per row.
        samplings: Sampling parameters, one per row; empty for tokens that are vectors.
        resources: The resources of the model.
        sampler: The target's sampler; drafts of tokens that are vectors share its noise.
        batch_size: Number of rows, B.
        networks: The kinds of heads by name, whose runners draft; see `mmspec.registry.heads`.
        starts: The values of `start` that the core does not have, by name; see `mmspec.registry.starts`.
        refreshes: Those of `refresh`; see `mmspec.registry.refreshes`.
    """

    recipe: ChosenRecipe
    layout: Layout
    target: Target
    samplings: Sequence[SamplingParams]
    resources: DraftResources
    sampler: Sampler
    batch_size: int
    networks: Mapping[str, HeadInfo] = field(default_factory=dict)
    starts: Mapping[str, Choice] = field(default_factory=dict)
    refreshes: Mapping[str, Choice] = field(default_factory=dict)
