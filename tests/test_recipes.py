"""Recipes as text: parsing, printing and errors."""

from __future__ import annotations

import copy
import pickle
import re
from types import SimpleNamespace
from typing import Any

import pytest
from batch_runs import run

from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError, MMSpecError, UnknownNameError
from mmspec.knobs import Knob
from mmspec.recipes import Recipe, default_recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.toys import ToyTarget
from mmspec.ways_to_draft import RECIPES, RecipeInfo


def test_parsing_and_printing_are_inverse() -> None:
    recipe = parse(" scd:window=32, coupling=gumbel ")
    assert recipe.name == "scd" and recipe.window == 32 and recipe.knobs["coupling"] == "gumbel"
    assert str(recipe) == "scd:window=32,coupling=gumbel" and parse(str(recipe)) == recipe == parse(recipe)
    assert str(Recipe("scd", {"window": 16})) == "scd:window=16"
    assert recipe.with_knobs(window=8) == Recipe("scd", {"window": 8, "coupling": "gumbel"})
    wrong: Any = ["left"]
    with pytest.raises(ArgumentError, match=r"scd:start=\['left'\] is not allowed"):
        recipe.with_knobs(start=wrong)
    assert len({parse("scd"), parse("scd:window=default"), parse("sjd")}) == 2


@pytest.mark.parametrize("value", [None, [1], float("inf"), 3.5])
def test_wrong_values_of_knobs(value: Any) -> None:
    with pytest.raises(ArgumentError, match="is not allowed"):
        Recipe("scd", {"window": value})


def test_recipes_can_be_pickled_and_copied() -> None:
    recipe = parse("scd:window=32")
    assert pickle.loads(pickle.dumps(recipe)) == recipe == copy.deepcopy(recipe)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_summary_and_parses_its_name(name: str) -> None:
    assert parse(name).exact and RECIPES[name].summary and str(parse(name)) == name


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("sdc", UnknownNameError, "unknown recipe 'sdc' (did you mean 'scd'?); known: beta, "),
        ("", UnknownNameError, "unknown recipe ''"),
        ("scd:windw=3", ArgumentError, "recipe 'scd' has no knob 'windw' (did you mean 'window'?); its knobs are"),
        ("plain:window=3", ArgumentError, "recipe 'plain' has no knob 'window'; it has no knobs"),
        ("scd:window", ArgumentError, "recipe='scd:window' is not readable at 'window'"),
        ("table:window=4+lantern:k=2", ArgumentError, "the knobs follow both names: table+lantern:knob=value"),
        ("scd:window=1", ArgumentError, "scd:window=1 is not allowed; it must be a number from 2 to 1024"),
        ("scd:window=two", ArgumentError, "scd:window=two is not allowed"),
        ("scd:window=2.5", ArgumentError, "scd:window=2.5 is not allowed"),
        ("scd:window=3,window=4", ArgumentError, "recipe='scd:window=3,window=4' sets 'window' twice"),
        (5, ArgumentError, "recipe=5 is not allowed"),
        ("scd:coupling=gumble", ArgumentError, "(did you mean 'gumbel'?)"),
    ],
)
def test_wrong_text(text: Any, error: type[MMSpecError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize("recipe", ["draft", "table", "scd:start=table"])
def test_a_recipe_whose_resources_the_model_lacks(recipe: str) -> None:
    with pytest.raises(ArgumentError, match="this model has none"):
        run(ToyTarget(1, 3, 3, 0), parse(recipe), Layout(3), [SamplingParams()], [0], DraftResources())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scd:refreshed=2", "sets refreshed, which requires refresh=model|eagle|medusa|block|grid"),
        ("scd:weight=0.5", "sets weight, which requires refresh="),
        ("scd:refresh=model,start=eagle", "take one network, to refresh or to start"),
        ("scd:refresh=eagle,layers=1", "sets layers, which requires start=model or refresh=model"),
        ("scd:refresh=outer,weight=0.5", "sets weight, which requires refresh=model|eagle|medusa|block|grid"),
        ("scd:refresh=outer,refreshed=2", "sets refreshed, which requires refresh=model|eagle|medusa|block|grid"),
        ("scd:refresh=outer,guidance=2", "sets guidance, which requires start=model or refresh=model"),
        ("scd:refresh=outer,start=model", "take one network, to refresh or to start"),
        ("scd:refresh=model,passes=2", "sets passes, which requires refresh=outer"),
        ("scd:refresh=table", "it must be one of none, outer, model, eagle, medusa, block, grid"),
        ("scd:refresh=model,weight=2", "must be a number from 0.0 to 1.0 or one of auto"),
    ],
)
def test_knobs_of_refreshed_drafts(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        parse(text)


def test_a_recipe_says_whether_it_uses_a_draft_model() -> None:
    uses = {"draft": True, "scd:start=model": True, "tree": True, "scd": False, "draft:layers=1": False, "eagle": False}
    uses |= {"scd:refresh=model": True, "scd:refresh=eagle": False, "sjd:refresh=model,layers=1": False}
    uses |= {"scd:refresh=outer": False, "scd:refresh=outer,layers=3": False}
    assert {recipe: parse(recipe).needs_draft_model for recipe in uses} == uses
    assert RecipeInfo("", {"tokens": "package:build"}, {"window": Knob(4, "tokens")}, draft_model=True).draft_model


@pytest.mark.parametrize("held", [{"recipe": "scd:window=4"}, SimpleNamespace(recipe="scd:window=4")])
def test_the_default_recipe_is_the_configured_one(held: object) -> None:
    assert default_recipe(SimpleNamespace(config=held)) == parse("scd:window=4")


def test_a_window_that_is_given_is_not_the_default() -> None:
    assert [str(parse(f"scd{knob}")) for knob in ("", ":window=default")] == ["scd"] * 2
    assert str(parse("scd:window=16")) == "scd:window=16"
    assert parse("scd").with_knobs(start="left").window_by_model and parse("scd:window=16").knobs["window"] == 16
