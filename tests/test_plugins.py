"""Entry points that cannot be used: an error of one line for those who use them, and of no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mmspec
from mmspec import registry
from mmspec.cli.app import main
from mmspec.errors import PluginError
from mmspec.metrics.registry import METRICS, find_metric, metrics
from mmspec.recipes import parse
from mmspec.registry import RULES
from mmspec.testing.exactness import check
from mmspec.ways_to_draft import RECIPES

MODULE = """
from mmspec.knobs import Knob
from mmspec.ways_to_draft import RECIPES, RecipeInfo
from mmspec.rules import Rule

TEXT = "text"
CLASH = RECIPES["plain"]
WINDOW = {"window": Knob(4, "tokens", low=2, high=64)}
MODEL = RecipeInfo("a draft model, without its knobs", {"tokens": "mmspec.drafters.draft_model:build"}, WINDOW)
NONSENSE = RecipeInfo("nonsense", {"tokens": "outside:build"}, WINDOW)
NO_TREE = RecipeInfo("a chain", {"tokens": "mmspec.drafters.draft_model:build"}, WINDOW, tree=True)
TREE = RecipeInfo(
    "a tree",
    {"tokens": "mmspec.drafters.tree.eagle2:build"},
    {**WINDOW, "depth": Knob(3, "depth", low=1, high=9), "top": Knob(2, "children", low=1, high=9)},
    tree=True,
)
MISSING_RULE = Rule("a rule whose factory is missing", "outside:missing")


def build(context):
    return None
"""
UNFINISHED = """
from mmspec.ways_to_draft import RecipeInfo

INFO = RecipeInfo("a recipe without a window", {"tokens": "outside:build"})
"""
ENTRY_POINTS = """
[mmspec.recipes]
absent = nowhere:INFO
broken = broken:INFO
text = outside:TEXT
scd = outside:CLASH
model-only = outside:MODEL
nonsense = outside:NONSENSE
chain-as-tree = outside:NO_TREE
small-tree = outside:TREE
unfinished = unfinished:INFO
[mmspec.drafters]
lost = outside:missing
[mmspec.rules]
exact = outside:TEXT
absent-rule = nowhere:RULE
text-rule = outside:TEXT
missing-rule = outside:MISSING_RULE
[mmspec.models]
absent-model = nowhere:load
shapes = nowhere:load
[mmspec.metrics]
absent-metric = nowhere:METRIC
fid = nowhere:METRIC
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with the entry points above."""
    (tmp_path / "outside.py").write_text(MODULE)
    (tmp_path / "unfinished.py").write_text(UNFINISHED)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    installed = tmp_path / "outside-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    registry.installed.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    registry.installed.cache_clear()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("absent", "plug-in 'nowhere:INFO' cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
        ("broken", "plug-in 'broken:INFO' cannot be loaded: ZeroDivisionError"),
        (
            "text",
            "plug-in 'outside:TEXT' (mmspec.recipes) must be a mmspec.drafters.recipe_info.RecipeInfo",
        ),
        ("unfinished", "RecipeInfo has builders, but no knob for the number of tokens in a target call"),
        ("lost", "plug-in 'outside:missing' cannot be loaded: AttributeError"),
        ("nonsense", "recipe 'nonsense' must return a Drafter, not None, which has no propose, observe"),
        ("chain-as-tree", "recipe 'chain-as-tree' must return a TreeDrafter"),
        ("table+absent-rule", "plug-in 'nowhere:RULE' cannot be loaded"),
        (
            "text-rule",
            "plug-in 'outside:TEXT' (mmspec.rules) must be a mmspec.rules.Rule whose `make` takes",
        ),
        ("missing-rule", "plug-in 'outside:missing' cannot be loaded"),
    ],
)
def test_recipes_that_cannot_be_used(recipe: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", recipe, "--samples", "1000"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_they_are_listed_with_their_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {entry["name"] for entry in listed["recipes"] if "error" in entry} == {
        "absent",
        "broken",
        "text",
        "unfinished",
    }
    assert {entry["name"] for entry in listed["rules"] if "error" in entry} == {"absent-rule", "text-rule"}
    assert main(["ls"]) == 0
    assert "plug-in 'nowhere:INFO' cannot be loaded" in capsys.readouterr().out


def test_names_of_mmspec_are_kept() -> None:
    assert parse("scd").info is RECIPES["scd"] and parse("scd").rule is RULES["exact"]
    assert metrics()["fid"] == METRICS["fid"]
    assert mmspec.load("shapes").config["recipe"] == "scd"


def test_models_and_metrics_that_cannot_be_loaded() -> None:
    with pytest.raises(PluginError, match=re.escape("plug-in 'nowhere:load' cannot be loaded")):
        mmspec.load("absent-model")
    with pytest.raises(PluginError, match=re.escape("plug-in 'nowhere:METRIC' cannot be loaded")):
        find_metric("absent-metric")


@pytest.mark.parametrize("recipe", ["scd", "model-only", "small-tree", "small-tree+beta:beta=0"])
def test_other_recipes_work(recipe: str) -> None:
    result = check(parse(recipe), samples=4000)
    assert result.tv <= result.limit and result.tokens_per_call > 1.05
