"""From a recipe to tokens: puts target, drafter, rule and law together and runs the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmspec.column_drafters import build_column_drafter, column_law
from mmspec.drafters.carry import CARRIES
from mmspec.drafters.chain import ChainDrafter
from mmspec.drafters.eagle import EagleReader
from mmspec.drafters.first_layers import FirstLayers, Part
from mmspec.drafters.guesses import Guesses
from mmspec.drafters.jacobi import Extender, Jacobi
from mmspec.drafters.medusa import MedusaReader
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.reader import Reader
from mmspec.drafters.recycle import Recycle
from mmspec.drafters.start import Start, Table, random_token, repeat_left, repeat_up
from mmspec.drafters.tree_dynamic import TreeDynamicDrafter
from mmspec.drafters.tree_model import DRAWINGS, TreeModelDrafter
from mmspec.drafters.tree_reader import TreeReader
from mmspec.drafters.tree_sampled import TreeSampledDrafter
from mmspec.drafters.tree_table import TreeTableDrafter
from mmspec.errors import ArgumentError, ModelError
from mmspec.heads.eagle import EagleHead
from mmspec.heads.load import Head
from mmspec.knobs import branches
from mmspec.law import Law, Sampling
from mmspec.loop import Drafter, OnStep, TokenLaw, decode, decode_plain
from mmspec.neighbours import Codebook
from mmspec.pace import Pace, Paces, decode_auto
from mmspec.recipes import LARGEST, READERS, Recipe
from mmspec.rows import Rows
from mmspec.rules import Accept
from mmspec.rules.by_codebook import ByCodebook
from mmspec.stats import Meter, Stats
from mmspec.target import FeatureTarget, Layout, Target
from mmspec.tree import TreeTarget
from mmspec.tree_drafts import verify_drafts
from mmspec.tree_loop import TreeDrafter, decode_tree
from mmspec.tree_verify import verify_tree


@dataclass(frozen=True)
class Aids:
    """What a model brings along for its drafters.

    - `table`: n-gram table, for the recipe `table` and for start tokens.
    - `draft_model`: makes a smaller model with the same prompts, wrapped as a target, for the recipe `draft`.
    - `draft_sampling`: how that model's tokens are drawn, one per row. Where there are none, first layers draft at
      the rows' own temperature, top-k and top-p.
    - `codebook`: what its tokens stand for, for rules that ask which of them are alike; `codebooks`: the same of each
      cell, where tokens are columns.
    - `paces`: what earlier runs have taught about windows, for `window=auto`; see `mmspec.pace.paces_of`.
    - `heads`: networks on the target's features, by the name of the recipe that drafts with them.
    - `guided_draft_model`: makes the draft model with guidance, where it has any.
    - `guesses`: makes guesses of its own kind, for wherever a table would guess; they may know more than neighbours.
    """

    table: Table | None = None
    draft_model: Callable[[], Target] | None = None
    draft_sampling: Sequence[Sampling] = ()
    codebook: Callable[[], Codebook | None] | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)
    paces: Paces = field(default_factory=dict)
    guided_draft_model: Callable[[], Target] | None = None
    guesses: Callable[[], Extender] | None = None
    codebooks: Callable[[], Sequence[Codebook]] | None = None


@dataclass(frozen=True)
class Decoded:
    """Tokens int64 [B, N] and what they cost."""

    tokens: Tensor
    stats: Stats


def run(
    target: Target,
    recipe: Recipe,
    layout: Layout,
    samplings: Sequence[Sampling],
    seeds: Sequence[int],
    aids: Aids = Aids(),
    on_step: OnStep | None = None,
    measure_entropy: bool = False,
) -> Decoded:
    """Decodes a batch of rows.

    **Arguments:**

    - `target`: the model with its prompts given, one per row.
    - `recipe`: how to decode.
    - `layout`: the sequence to be made.
    - `samplings`, `seeds`: one per row. A row's tokens depend on its own seed and prompt alone, not on the batch.
    - `aids`: what drafters may use.
    - `on_step`: called after every target call; what it raises ends the run.
    - `measure_entropy`: also measure the entropy of the target's law along the way.

    **Raises:** `ArgumentError` when the recipe needs an aid the model does not bring.
    """
    meter = Meter(target.device, len(seeds), measure_entropy)
    rows = Rows(seeds, layout, recipe.window, target.device)
    flat = Law(samplings, layout.constraint, target.device)
    law: TokenLaw = column_law(samplings, layout, target) if layout.cell else flat
    rule, calls = build_rule(recipe, aids), 0
    with torch.inference_mode():
        if recipe.info.tree and not layout.cell:
            tree_drafter = build_tree_drafter(recipe, layout, target, samplings, aids)
            test = verify_drafts if recipe.info.drafter == "k-seq" else verify_tree
            decode_tree(reader_of_trees(target), tree_drafter, rule, flat, rows, meter, on_step, test)
            calls = tree_drafter.calls
        elif (drafter := build_drafter(recipe, layout, target, samplings, aids)) is None:
            decode_plain(target, law, rows, meter, on_step)
        elif recipe.auto:
            decode_auto(target, drafter, rule, law, rows, find_pace(recipe, samplings, aids), meter, on_step)
            calls = drafter.calls
        else:
            decode(target, drafter, rule, law, rows, recipe.window, meter, on_step)
            calls = drafter.calls
    meter.clock.lap("other")
    return Decoded(rows.result().clone(), meter.stats(calls))


def find_pace(recipe: Recipe, samplings: Sequence[Sampling], aids: Aids) -> Pace:
    """What earlier runs like this one have taught about windows."""
    head = aids.heads.get(recipe.info.reader)
    largest = LARGEST if head is None or isinstance(head, EagleHead) else min(LARGEST, head.count + 1)
    known = str(recipe), len(samplings), any(s.guidance_scale != 1 for s in samplings)
    return aids.paces.setdefault(known, Pace(largest))


def build_rule(recipe: Recipe, aids: Aids) -> Accept:
    """The acceptance rule of a recipe, with its knobs set. **Raises:** `ArgumentError` when it is for vectors."""
    if recipe.rule.continuous:
        raise ArgumentError(
            f"recipe {recipe.name!r} accepts by the rule {recipe.rule_name!r}, which is for tokens that are vectors, "
            "and this model's are numbers; see 'mmspec ls rules'"
        )
    if recipe.rule.takes_codebook and aids.codebooks is not None:
        return ByCodebook([recipe.rule.build(recipe.knobs, codebook) for codebook in aids.codebooks()])
    codebook = aids.codebook() if recipe.rule.takes_codebook and aids.codebook is not None else None
    return recipe.rule.build(recipe.knobs, codebook)


def build_drafter(
    recipe: Recipe, layout: Layout, target: Target, samplings: Sequence[Sampling], aids: Aids
) -> Drafter | None:
    """The drafter a recipe asks for, for rows with these settings; None for plain decoding."""
    if layout.cell:
        return build_column_drafter(recipe, layout, target, samplings, aids)
    kind = recipe.info.drafter
    if kind == "none":
        return None
    if kind == "model":
        model, settings = find_model(recipe, target, samplings, aids)
        return ModelDrafter(model, Law(settings, layout.constraint, target.device))
    if kind == "chain":
        reader = build_reader(recipe.info.reader, recipe, layout, target, samplings, aids)
        return ChainDrafter(reader, target.device)
    if kind in ("table", "recycle"):
        return Jacobi(build_guesses(kind, recipe, layout, target, samplings, aids), None, target.vocab_size)
    carry = CARRIES[str(recipe.knobs.get("coupling", "fresh"))]
    start = str(recipe.knobs["start"])
    if start in READERS:
        reader = build_reader(start, recipe, layout, target, samplings, aids)
        return Jacobi(ChainDrafter(reader, target.device), carry, target.vocab_size)
    if start == "auto":
        start = "table" if (aids.table or aids.guesses) is not None else "up" if layout.width else "left"
    return Jacobi(build_guesses(start, recipe, layout, target, samplings, aids), carry, target.vocab_size)


def build_guesses(
    start: str, recipe: Recipe, layout: Layout, target: Target, samplings: Sequence[Sampling], aids: Aids
) -> Extender:
    """The guesses of that name."""
    if start == "table" and aids.guesses is not None:
        return aids.guesses()
    return Guesses(find_start(start, recipe, layout, target, len(samplings), aids))


def build_tree_drafter(
    recipe: Recipe, layout: Layout, target: Target, samplings: Sequence[Sampling], aids: Aids
) -> TreeDrafter:
    """The drafter that a recipe with a tree asks for."""
    kind, knobs = recipe.info.drafter, recipe.knobs
    if kind == "table":
        if aids.table is None:
            raise ArgumentError(f"recipe '{recipe}' needs an n-gram table, and this model brings none")
        return TreeTableDrafter(aids.table, branches(str(knobs["branch"])), target.vocab_size, target.device)
    reader = build_reader(recipe.info.reader, recipe, layout, target, samplings, aids)
    if kind == "sampled":
        return TreeSampledDrafter(reader, recipe.window - 1, int(knobs["depth"]))
    if kind == "k-seq":
        branch = [int(knobs["drafts"])] + [1] * (int(knobs["length"]) - 1)
        return TreeModelDrafter(reader, branch, DRAWINGS["independent"], target.device)
    if kind in DRAWINGS:
        return TreeModelDrafter(reader, branches(str(knobs["branch"])), DRAWINGS[kind], target.device)
    return TreeDynamicDrafter(reader, recipe.window - 1, int(knobs["depth"]), int(knobs["top"]), target.vocab_size)


def build_reader(
    kind: str, recipe: Recipe, layout: Layout, target: Target, samplings: Sequence[Sampling], aids: Aids
) -> Reader:
    """What gives the laws that a recipe's drafts are drawn from: "model", "eagle" or "medusa".

    **Raises:** `ArgumentError` when the model brings no such network, or one that cannot draft so far ahead;
    `ModelError` when it is for another model.
    """
    dynamic = recipe.info.drafter == "dynamic"

    def law(settings: Sequence[Sampling]) -> Law:
        # A dynamic tree only measures how likely a token is, which the one-hot law of a greedy row does not tell.
        warm = [replace(s, temperature=s.temperature or 1.0) for s in settings] if dynamic else settings
        return Law(warm, layout.constraint, target.device)

    if kind == "model":
        model, settings = find_model(recipe, target, samplings, aids)
        return TreeReader(reader_of_trees(model) if recipe.info.tree else model, law(settings))
    if kind not in aids.heads:
        raise ArgumentError(
            f"recipe {recipe.name!r} needs a drafter of kind {kind!r}, and this model brings none; train one with "
            f"`mmspec train-drafter --kind {kind}` and name its folder as drafter"
        )
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(f"recipe {recipe.name!r} is not possible here: {type(target).__name__} shows no features")
    head = aids.heads[kind]
    if head.vocab_size != target.vocab_size:
        raise ModelError(
            f"drafter has {head.vocab_size} tokens, the model {target.vocab_size}; they do not belong together"
        )
    if isinstance(head, EagleHead):
        return EagleReader(head, target, law(samplings), layout.length, recipe.window)
    if recipe.depth > head.count and not recipe.auto:
        raise ArgumentError(f"recipe '{recipe}' drafts {recipe.depth} tokens ahead, and there are {head.count} heads")
    return MedusaReader(head, target, law(samplings))


def find_model(
    recipe: Recipe, target: Target, samplings: Sequence[Sampling], aids: Aids
) -> tuple[Target, list[Sampling]]:
    """The model that drafts, and how its tokens are drawn: a smaller one, or the target's own first layers.

    **Raises:** `ArgumentError` when there is none, or none with guidance where that is asked for.
    """
    layers, scale = int(recipe.knobs["layers"]), float(recipe.knobs["guidance"])
    own = [replace(s, guidance_end=None) for s in samplings]
    settings = [replace(s, guidance_scale=scale) for s in aids.draft_sampling or own]
    if layers:
        return FirstLayers(target, Part(layers, guided=scale != 1)), settings
    if aids.draft_model is None:
        raise ArgumentError(f"recipe {recipe.name!r} needs a draft model, and this model brings none")
    make = aids.draft_model if scale == 1 else aids.guided_draft_model
    if make is None:
        raise ArgumentError(f"recipe '{recipe}' needs a draft model with guidance; leave guidance at 1")
    return make(), settings


def reader_of_trees(target: Target) -> TreeTarget:
    """The same target. **Raises:** `ArgumentError` when it does not read trees."""
    if not isinstance(target, TreeTarget):
        raise ArgumentError(f"recipes with a tree are not possible here: {type(target).__name__} reads windows only")
    return target


def find_start(name: str, recipe: Recipe, layout: Layout, target: Target, rows: int, aids: Aids) -> Start | Recycle:
    """The start-token guess of that name."""
    above = repeat_up if layout.width else repeat_left
    if name == "recycle":
        return Recycle(rows, target.vocab_size, above, target.device)
    if name == "table":
        if aids.table is None:
            raise ArgumentError(f"recipe '{recipe}' needs an n-gram table, and this model brings none")
        return aids.table
    return {"left": repeat_left, "up": above, "random": random_token(target.vocab_size)}[name]
