"""The page of methods agrees with the registries: what it names exists, and nothing is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmspec.errors import MMSpecError
from mmspec.recipes import parse
from mmspec.registry import RULES
from mmspec.ways_to_draft import RECIPES

PAGE = (Path(__file__).parents[1] / "docs" / "methods.md").read_text()
# Baselines and combinations without a paper of their own.
WITHOUT_PAPER = {"plain", "exact"}


def named() -> set[str]:
    """The recipes and rules in the third column of the tables, and in the table of figures."""
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    cells = " ".join(row[2] for row in rows if len(row) >= 3) + " ".join(row[0] for row in rows)
    return set(re.findall(r"`([^`]+)`", cells))


def test_every_recipe_and_rule_that_the_page_names_exists() -> None:
    words = {
        "shapes", "rough", "spoken", "window=auto", "stop", "branch", "window", "layers", "tp_plan", "mmspec", "tvd",
        "lk", "--loss tvd", "ahead", "confidence", "keep", "refresh", "refresh=1", "Watch", "train_filter",
        "LearnedFilter", "large_maps", "steps", "large_scales", "measure_distance", "tv_bound", "Shortcuts",
    }  # fmt: skip
    for name in sorted(named() - words):
        if name.startswith("mmspec") or "(" in name or ("/" in name and "." in name):
            continue  # commands, code and paths
        try:
            parse(name)
        except MMSpecError as error:
            pytest.fail(f"docs/methods.md names {name!r}: {error}")


def test_every_recipe_and_rule_is_on_the_page() -> None:
    found = set(re.findall(r"`([^`:]+)[^`]*`", PAGE))
    assert set(RECIPES) | set(RULES) - WITHOUT_PAPER <= found | WITHOUT_PAPER
