"""The packages of docs/adding-a-drafter.md and docs/adding-a-recipe.md, as written there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guides import install, run_mmspec


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with both packages installed."""
    install("adding-a-drafter.md", tmp_path)
    install("adding-a-recipe.md", tmp_path)
    return tmp_path


def test_they_are_listed(site: Path) -> None:
    listed = json.loads(run_mmspec(site, "ls", "--json"))
    recipes = {recipe["name"]: recipe for recipe in listed["recipes"]}
    assert recipes["lookup"]["knobs"] == ["window"]
    assert recipes["scd-wide"]["knobs"] == recipes["scd"]["knobs"]
    assert [drafter["name"] for drafter in listed["drafters"]] == ["lookup"]


@pytest.mark.parametrize("recipe", ["lookup:window=3", "scd-wide:window=4"])
def test_they_are_exact(site: Path, recipe: str) -> None:
    (result,) = json.loads(run_mmspec(site, "check", recipe, "--samples", "20000", "--json"))["results"]
    assert result["passed"] and result["tokens_per_call"] > 1.05, result


def test_they_generate_images_by_any_rule(site: Path) -> None:
    out = site / "out.png"
    run_mmspec(site, "image", "a large green star", "--recipe", "lookup+beta:beta=0.3,window=6", "-o", str(out))
    assert out.is_file()
