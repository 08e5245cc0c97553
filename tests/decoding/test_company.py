"""A row is what it would be alone, whatever else is in its batch: every recipe, by its table.

A recipe, a choice of a knob or a rule that is added is tested without a line here, or must be named in `IMPOSSIBLE`
with the reason. Windows reach past the end of rows, which have other lengths, settings and speeds than their batch.
Left out are `window=auto` and `branch=auto`: their widths follow measured seconds, in a batch of one as well.

Models that fill masked places have no recipes; their rows are tested in `tests/masked/test_loop.py`, and with the
models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest
from company import Frames, Tokens, World, alone, columns, differing, joining, latents, together

from mmspec.errors import ArgumentError, ModelError
from mmspec.knobs import Value
from mmspec.recipes import Recipe, parse
from mmspec.registry import rules
from mmspec.testing.latents import run_toy
from mmspec.testing.toys import ToyHead
from mmspec.ways_to_draft import RecipeInfo, ways_to_draft

WORLDS: Mapping[str, World] = {
    "image": Tokens(), "stream": Tokens(width=None), "guided": Tokens(guided=True), "ended": Tokens(ends=True),
    "bare": Tokens(bare=True), "columns": columns, "latents": latents, "frames": Frames(0), "frames ahead": Frames(3),
}  # fmt: skip
TOYS, FRAMES = ("image", "stream", "guided", "ended", "columns", "latents"), ("frames", "frames ahead")
KINDS = {"columns": "columns", "latents": "latents"}  # the kind of token of a world; "tokens" of the others

# Settings that the table of choices does not have, by recipe.
MORE: Mapping[str, list[dict[str, Value]]] = {
    "draft": [{"guidance": 2.0}, {"layers": 1}],
    "draft-stop": [{"stop": 0.7}, {"layers": 1, "guidance": 1.5}],
    "layer-skip": [{"layers": 1, "guidance": 1.5}],
    "short-cache": [{"recent": 2, "guidance": 1.5}],
    "swift": [{"skip": 0.6}],
    "cascade": [{"inner": 2}, {"recent": 0, "layers": 2, "inner": 8}, {"guidance": 1.5}],
    "block": [{"window": 5}, {"window": 64}],
    "recycle": [{"window": 64}],
    "stand": [{"window": 64}],
    "masked": [{"window": 64}],
    "one-step": [{"window": 64}],
    "retrieval": [{"window": 64}],
    "scd": [
        {"coupling": "gumbel", "start": "recycle"},
        {"start": "model", "layers": 1, "guidance": 2.0},
        {"refresh": "outer", "passes": 2, "layers": 3},
        {"refresh": "eagle", "refreshed": 3},
        {"refresh": "block", "refreshed": 8, "weight": 0.5},
        {"refresh": "model", "layers": 1, "weight": 1.0, "start": "stand"},
    ],
    "sjd": [{"refresh": "outer", "start": "recycle"}, {"window": 64, "start": "block"}],
    "spectr": [{"drafts": 2, "length": 6}],
    "tree": [{"branch": "2/2/1/1/1/1"}, {"layers": 1, "guidance": 2.0}],
    "tree-dynamic": [{"depth": 8, "top": 2}],
    "tree-sampled": [{"depth": 3}],
    "eagle-2": [{"depth": 8, "top": 2}],
    "prompt": [{"branch": "2/2/1"}],
}
# Where a world has not what a recipe needs, by a part of the error.
OF_FRAMES = {
    "reads windows only": "a depth decoder has no trees",
    "cannot draft here": "it has no early exit",
    "does not provide the states of its layers": "for refresh=outer",
    "needs a drafter of kind": "only frame heads draft frames, in windows of several",
    "needs a draft model with guidance": "CSM has no guidance",
    "needs a masked model": "CSM has none",
    "needs an n-gram table": "CSM has none",
    "needs a datastore": "CSM has none",
    "needs a choice of layers": "for swift",
    "needs a judge": "a judge reads features of tokens",
    "needs the model's codebook": "of tokens of one kind",
}
IMPOSSIBLE: Mapping[str, Mapping[str, str]] = {
    "frames": OF_FRAMES,
    "frames ahead": OF_FRAMES,
    "columns": {
        "for which start must be one of": "tokens above or before are of one codebook",
        "drafts of columns cannot be refreshed": "networks draft tokens",
        "needs a draft model with guidance": "that of the toy has none",
        "needs a judge": "a judge reads the features of tokens",
    },
    "stream": {"drafter is for lines of": "a grid head drafts images"},
    "latents": {
        "drafts of vectors cannot be refreshed": "networks draft tokens",
        "is not possible with continuous tokens": "latents start from the last output",
        "begins without drafts": "see `test_latents_that_begin_without_drafts`",
    },
}


def settings(name: str, info: RecipeInfo, brief: bool) -> list[dict[str, Value]]:
    """The knobs that a recipe is tested with: the default ones, each choice of a knob, and what `MORE` has."""
    found: list[dict[str, Value]] = [{}]
    for knob, known in info.knobs.items():
        if knob not in ("window", "branch", "weight") and not brief:
            found += [{knob: choice} for choice in known.choices if choice != known.default]
    found += MORE.get(name, [])
    made = list[dict[str, Value]]()
    for knobs in found:
        # The heads of Medusa and Hydra of the toys draft 8 tokens.
        width = 9 if {"medusa", "hydra"} & {info.runner, *knobs.values()} else 16
        made.append({**({"window": width} if "window" in info.knobs else {}), **knobs})
    return made


def recipes(kind: str, brief: bool) -> list[Recipe]:
    """Every way of drafting a kind of token, each with every setting, and every rule; see `cases`."""
    known = {name: info for name, info in ways_to_draft().usable().items() if info.drafts and info.supports(kind)}
    rule_names = [name for name, rule in rules().usable().items() if rule.continuous == (kind == "latents")]
    made = list[Recipe]()
    for name, info in known.items():
        suffix = "+smoothed" if kind == "latents" and not info.continuous else ""
        made += [Recipe(name + suffix, knobs) for knobs in settings(name, info, brief)]
    if brief:
        return made
    drafted = "draft" if kind == "tokens" else "scd"
    return [*made, *(Recipe(f"{drafted}+{rule}", {"window": 16}) for rule in rule_names if rule != "exact")]


def cases(worlds: Sequence[str], brief: bool = False) -> list[object]:
    """Recipes of each kind of token, with one of the worlds in turn.

    Args:
        worlds: The worlds.
        brief: Whether choices of knobs and rules are left out.
    """
    found = list[object]()
    for kind in ("tokens", "columns", "latents"):
        places = [world for world in worlds if KINDS.get(world, "tokens") == kind]
        for number, recipe in enumerate(recipes(kind, brief) if places else ()):
            world = places[(number + brief) % len(places)]
            found.append(pytest.param(world, recipe, id=f"{world}-{recipe}"))
    return found


def check(name: str, recipe: Recipe, rows: int) -> None:
    world = WORLDS[name]
    try:
        world(recipe, [0]).start()
    except (ArgumentError, ModelError) as error:
        assert any(part in str(error) for part in IMPOSSIBLE.get(name, ())), error
        return
    expected = alone(world, recipe, range(rows))
    assert len({tuple(tokens.flatten().tolist()) for tokens in expected.values()}) > 2
    others = together(world, recipe, range(rows)), joining(world, recipe, range(rows), 2)
    assert [differing(expected, found) for found in others] == [[], []]


@pytest.mark.parametrize(("world", "recipe"), cases(TOYS, brief=True))
def test_a_row_is_what_it_is_alone(world: str, recipe: Recipe) -> None:
    check(world, recipe, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "recipe"), cases(TOYS))
def test_a_row_is_what_it_is_alone_with_every_choice(world: str, recipe: Recipe) -> None:
    check(world, recipe, 7)


@pytest.mark.parametrize("recipe", ["cascade:window=16,inner=8", "scd:start=auto", "cascade:window=6,inner=4"])
def test_rows_of_a_model_without_a_drafter(recipe: str) -> None:
    """The cascade then has a table of its own, built online, whose windows end where those of the batch do."""
    check("bare", parse(recipe), 7)


@pytest.mark.parametrize("recipe", ["scd", "draft", "recycle"])
@pytest.mark.parametrize("world", ["frames", "frames ahead"])
def test_rows_of_frames(world: str, recipe: str) -> None:
    check(world, parse(recipe), 5)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "recipe"), [case for each in FRAMES for case in cases([each])])
def test_rows_of_frames_with_every_choice(world: str, recipe: Recipe) -> None:
    check(world, recipe, 5)


@pytest.mark.parametrize("recipe", ["scd+cspd:window=16,sigma=0.3", "draft+cspd:window=16,sigma=0.3"])
def test_latents_that_begin_without_drafts(recipe: str) -> None:
    """All rows have the same length: they do not join."""
    make = partial(
        run_toy, parse(recipe), seed=3, dim=2, length=20, head=ToyHead(2, sigma=0.3), draft=ToyHead(2, 0.1, 0.4)
    )
    expected = make(seeds=range(6)).tokens
    for seed in range(6):
        np.testing.assert_allclose(make(seeds=[seed]).tokens[0], expected[seed], atol=1e-4)
