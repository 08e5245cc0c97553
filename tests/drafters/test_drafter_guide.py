"""The packages of docs/adding-a-drafter.md and docs/adding-a-recipe.md, as written there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guides import install, run_mmspec

RECIPES = ["lookup:window=3", "scd-wide:window=4"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both packages installed."""
    site = tmp_path_factory.mktemp("site")
    install("adding-a-drafter.md", site)
    install("adding-a-recipe.md", site)
    return site


@pytest.fixture(scope="module")
def printed(site: Path) -> list[str]:
    """What the commands of the guides print: the list, the checks of both recipes, and an image."""
    checks = [["check", recipe, "--samples", "20000", "--json"] for recipe in RECIPES]
    recipe = ["--recipe", "lookup+beta:beta=0.3,window=6"]
    return run_mmspec(
        site, ["ls", "--json"], *checks, ["image", "a large green star", *recipe, "-o", str(site / "out.png")]
    )


def test_they_are_listed(printed: list[str]) -> None:
    listed = json.loads(printed[0])
    recipes = {recipe["name"]: recipe for recipe in listed["recipes"]}
    assert recipes["lookup"]["knobs"] == ["window"]
    assert recipes["scd-wide"]["knobs"] == recipes["scd"]["knobs"]
    assert [drafter["name"] for drafter in listed["drafters"]] == ["lookup"]


def test_they_are_exact(printed: list[str]) -> None:
    for recipe, found in zip(RECIPES, printed[1:3], strict=True):
        (result,) = json.loads(found)["results"]
        assert result["recipe"] == recipe and result["passed"] and result["tokens_per_call"] > 1.05, result


def test_they_generate_images_by_any_rule(site: Path, printed: list[str]) -> None:
    assert printed[3].strip() == str(site / "out.png") and (site / "out.png").is_file()
