"""From a recipe to tokens: puts target, drafter, rule and law together and runs the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmspec.drafters.carry import CARRIES
from mmspec.drafters.jacobi import Jacobi
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.recycle import Recycle
from mmspec.drafters.start import NGramTable, Start, random_token, repeat_left, repeat_up
from mmspec.drafters.tree_dynamic import TreeDynamicDrafter
from mmspec.drafters.tree_model import DRAWINGS, TreeModelDrafter
from mmspec.drafters.tree_reader import TreeReader
from mmspec.drafters.tree_table import TreeTableDrafter
from mmspec.errors import ArgumentError
from mmspec.knobs import branches
from mmspec.law import Law, Sampling
from mmspec.loop import Drafter, OnStep, decode, decode_plain
from mmspec.neighbours import Codebook
from mmspec.pace import Pace, Paces, decode_auto
from mmspec.recipes import Recipe
from mmspec.rows import Rows
from mmspec.rules import Accept
from mmspec.stats import Meter, Stats
from mmspec.target import Layout, Target
from mmspec.tree import TreeTarget
from mmspec.tree_loop import TreeDrafter, decode_tree


@dataclass(frozen=True)
class Aids:
    """What a model brings along for its drafters.

    - `table`: n-gram table, for the recipe `table` and for start tokens.
    - `draft_model`: makes a smaller model with the same prompts, wrapped as a target, for the recipe `draft`.
    - `draft_sampling`: how that model's tokens are drawn, one per row.
    - `codebook`: what its tokens stand for, for rules that ask which of them are alike.
    - `paces`: what earlier runs have taught about windows, for `window=auto`; see `mmspec.pace.paces_of`.
    """

    table: NGramTable | None = None
    draft_model: Callable[[], Target] | None = None
    draft_sampling: Sequence[Sampling] = ()
    codebook: Callable[[], Codebook | None] | None = None
    paces: Paces = field(default_factory=dict)


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
    law = Law(samplings, layout.constraint, target.device)
    calls = 0
    with torch.inference_mode():
        if recipe.info.tree:
            rule, tree_drafter = build_rule(recipe, aids), build_tree_drafter(recipe, layout, target, aids)
            decode_tree(reader_of_trees(target), tree_drafter, rule, law, rows, meter, on_step)
            calls = tree_drafter.calls
        elif (drafter := build_drafter(recipe, layout, target, len(seeds), aids)) is None:
            decode_plain(target, law, rows, meter, on_step)
        else:
            rule = build_rule(recipe, aids)
            if recipe.auto:
                known = str(recipe), len(seeds), any(s.guidance_scale != 1 for s in samplings)
                decode_auto(target, drafter, rule, law, rows, aids.paces.setdefault(known, Pace()), meter, on_step)
            else:
                decode(target, drafter, rule, law, rows, recipe.window, meter, on_step)
            calls = drafter.calls
    meter.clock.lap("other")
    return Decoded(rows.result().clone(), meter.stats(calls))


def build_rule(recipe: Recipe, aids: Aids) -> Accept:
    """The acceptance rule of a recipe, with its knobs set. **Raises:** `ArgumentError` when it is for vectors."""
    if recipe.rule.continuous:
        raise ArgumentError(
            f"recipe {recipe.name!r} accepts by the rule {recipe.rule_name!r}, which is for tokens that are vectors, and "
            "this model's are numbers; see 'mmspec ls rules'"
        )
    codebook = aids.codebook() if recipe.rule.takes_codebook and aids.codebook is not None else None
    return recipe.rule.build(recipe.knobs, codebook)


def build_drafter(recipe: Recipe, layout: Layout, target: Target, rows: int, aids: Aids) -> Drafter | None:
    """The drafter a recipe asks for, for so many rows; None for plain decoding."""
    kind = recipe.info.drafter
    if kind == "none":
        return None
    if kind == "model":
        if aids.draft_model is None:
            raise ArgumentError(f"recipe {recipe.name!r} needs a draft model, and this model brings none")
        return ModelDrafter(aids.draft_model(), Law(aids.draft_sampling, layout.constraint, target.device))
    if kind in ("table", "recycle"):
        return Jacobi(find_start(kind, recipe, target, rows, aids), None, target.vocab_size)
    carry = CARRIES[str(recipe.knobs.get("coupling", "fresh"))]
    start = str(recipe.knobs["start"])
    if start == "auto":
        start = "table" if aids.table is not None else "up" if layout.width else "left"
    return Jacobi(find_start(start, recipe, target, rows, aids), carry, target.vocab_size)


def build_tree_drafter(recipe: Recipe, layout: Layout, target: Target, aids: Aids) -> TreeDrafter:
    """The drafter that a recipe with a tree asks for."""
    kind, knobs = recipe.info.drafter, recipe.knobs
    if kind == "table":
        if aids.table is None:
            raise ArgumentError(f"recipe '{recipe}' needs an n-gram table, and this model brings none")
        return TreeTableDrafter(aids.table, branches(str(knobs["branch"])), target.vocab_size, target.device)
    if aids.draft_model is None:
        raise ArgumentError(f"recipe {recipe.name!r} needs a draft model, and this model brings none")
    model, samplings = reader_of_trees(aids.draft_model()), aids.draft_sampling
    if kind in DRAWINGS:
        reader = TreeReader(model, Law(samplings, layout.constraint, target.device))
        return TreeModelDrafter(reader, branches(str(knobs["branch"])), DRAWINGS[kind], target.device)
    # It only measures how likely a token is, which the one-hot law of a greedy row does not tell.
    warm = [replace(s, temperature=s.temperature or 1.0) for s in samplings]
    reader = TreeReader(model, Law(warm, layout.constraint, target.device))
    return TreeDynamicDrafter(reader, recipe.window - 1, int(knobs["depth"]), int(knobs["top"]), target.vocab_size)


def reader_of_trees(target: Target) -> TreeTarget:
    """The same target. **Raises:** `ArgumentError` when it does not read trees."""
    if not isinstance(target, TreeTarget):
        raise ArgumentError(f"recipes with a tree are not possible here: {type(target).__name__} reads windows only")
    return target


def find_start(name: str, recipe: Recipe, target: Target, rows: int, aids: Aids) -> Start | Recycle:
    """The start-token guess of that name."""
    if name == "recycle":
        return Recycle(rows, target.vocab_size, target.device)
    if name == "table":
        if aids.table is None:
            raise ArgumentError(f"recipe '{recipe}' needs an n-gram table, and this model brings none")
        return aids.table
    return {"left": repeat_left, "up": repeat_up, "random": random_token(target.vocab_size)}[name]
