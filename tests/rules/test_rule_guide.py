"""docs/adding-a-rule.md, followed to the letter by a package outside mmspec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guides import install, make_files, run_mmspec


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the package installed."""
    install("adding-a-rule.md", tmp_path)
    # Drafts are good after which the first symbol is likely: the features of the toy are its next logits.
    make_files("adding-a-rule.md", tmp_path)
    return tmp_path


def test_a_strangers_rule_is_listed_checked_and_exact_at_zero(site: Path) -> None:
    recipes = ("table+critic:leniency=0.9", "table+critic:leniency=0")
    checks = [["check", recipe, "--samples", "20000", "--json"] for recipe in recipes]
    listed, *checked = map(json.loads, run_mmspec(site, ["ls", "rules", "--json"], *checks))
    rules = {rule["name"]: rule for rule in listed["rules"]}
    assert rules["critic"]["knobs"] == ["leniency"] and not rules["critic"]["exact"]
    relaxed, exact = (one["results"][0] for one in checked)
    assert relaxed["passed"] and relaxed["tv_bound"] > 0.01 and relaxed["tv"] > relaxed["limit"]
    assert exact["passed"] and exact["tv_bound"] == 0 and exact["tv"] <= exact["limit"]
    assert relaxed["tokens_per_call"] > exact["tokens_per_call"]
