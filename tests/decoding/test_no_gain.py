"""What cannot make decoding quicker is said once: for every recipe, with a draft model as large as the target."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from batch_runs import run
from every_recipe import SHORT
from torch import nn

from mmspec.decoding import no_gain
from mmspec.decoding.layout import Layout
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget, toy_resources
from mmspec.ways_to_draft import RECIPES

V, LENGTH = 3, 4
TREE, LARGE = "on a CPU a chain of drafts takes less time", "cost as much as tokens"

# What is said of each recipe; its chain of small models is refused or silent everywhere else.
SAID = {
    "draft": LARGE, "draft-stop": LARGE, "pearl": LARGE, "cascade": LARGE, "scd:start=model": LARGE,
    "sjd:start=left,refresh=model": LARGE, "tree": TREE + LARGE, "tree-chains": TREE + LARGE, "spectr": TREE + LARGE,
    "tree-dynamic": TREE + LARGE, "tree-sampled": TREE + LARGE, "tree-table": TREE, "tree-eagle": TREE,
    "eagle-2": TREE, "tree-medusa": TREE, "tree-hydra": TREE, "tree-block": TREE, "prompt": TREE,
}  # fmt: skip
NAMES = [name for name, info in RECIPES.items() if info.drafts and "tokens" in info.builders]
CASES = [*NAMES, *(recipe for recipe in SAID if recipe not in NAMES)]


class Weighty(ToyTarget):
    def __init__(self, *arguments: Any, width: int = 4) -> None:
        super().__init__(*arguments)
        self.net = nn.Linear(width, width)


def said(recipe: str, width: int, caplog: pytest.LogCaptureFixture) -> str:
    """What two runs say of a recipe whose draft model is `width` wide; the target's width is 4."""
    no_gain._tell.cache_clear()
    caplog.clear()
    name, _, given = recipe.partition(":")
    short = [f"{knob}={value}" for knob, value in SHORT.items() if knob in RECIPES[name].knobs]
    text = ":".join(filter(None, [name, ",".join([*short, *filter(None, [given])])]))
    layout, settings = Layout(LENGTH, 2), [SamplingParams()] * 2
    resources = toy_resources(2, V, layout, 5, settings)
    resources = replace(resources, draft_model=lambda: Weighty(2, V, LENGTH, 6, width=width))
    with caplog.at_level(logging.WARNING, no_gain.__name__):
        for seed in (0, 2):
            run(Weighty(2, V, LENGTH, 5), parse(text), layout, settings, [seed, seed + 1], resources)
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("recipe", CASES)
def test_recipes_that_cannot_gain(recipe: str, caplog: pytest.LogCaptureFixture) -> None:
    expected, lines = SAID.get(recipe, ""), said(recipe, 4, caplog)
    assert [each in lines for each in (TREE, LARGE)] == [each in expected for each in (TREE, LARGE)]
    assert len(lines.splitlines()) == (TREE in expected) + (LARGE in expected)
    assert LARGE not in said(recipe, 3, caplog)


class Head:
    def __init__(self, steps: int) -> None:
        self.steps = steps


@pytest.mark.parametrize(("steps", "few", "silent"), [(1, 4, False), (4, 4, False), (10, 4, True)])
def test_a_head_that_takes_no_fewer_steps(steps: int, few: int, silent: bool, caplog: pytest.LogCaptureFixture) -> None:
    no_gain._tell.cache_clear()
    no_gain.tell_of_steps(parse("few-steps"), Head(steps), Head(few))
    assert (caplog.text == "") == silent
    assert silent or f"{few} of the head's {steps} step" in caplog.text
