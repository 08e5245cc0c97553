"""`mmspec check`: its lines, its exit status, and the toys it runs recipes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmspec.cli.app import main
from mmspec.cli.check import all_recipes
from mmspec.registry import RULES
from mmspec.ways_to_draft import RECIPES


def results(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return json.loads(capsys.readouterr().out)["results"]


def test_check_prints_a_line_per_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "scd:window=3", "--samples", "2000"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("scd:window=3") and "passed" in line and "(exact)" in line
    assert main(["check", "beta", "--samples", "2000", "--json"]) == 0
    (result,) = results(capsys)
    assert result["recipe"] == "beta" and not result["exact"] and result["tv"] > result["limit"] and result["passed"]
    assert main(["check", "scdd"]) == 2


def test_check_fails_a_biased_recipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.sampling.rejection.residual", lambda p, q: p)
    assert main(["check", "draft", "--samples", "20000"]) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", ["scd:window=3", "layer-skip:window=3,layers=1", "draft+lantern++:factor=4,k=1"])
def test_columns_are_checked_on_a_toy_of_columns(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", recipe, "--columns", "--samples", "5000", "--json"]) == 0
    (result,) = results(capsys)
    assert result["passed"] and result["tokens_per_call"] > 1
    assert result["exact"] == ("lantern" not in recipe) == (result["tv_bound"] == 0)


def test_check_fails_a_recipe_that_is_biased_on_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.sampling.multi_codebook.thin", lambda p, q, draws: p.argmax(-1))
    assert main(["check", "draft", "--columns", "--samples", "5000"]) == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(("recipe", "options"), [("draft+smoothed", ["--latents"]), ("smoothed", []), ("cspd", [])])
def test_latents_are_checked_on_a_toy_of_latents(
    recipe: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", recipe, *options, "--samples", "2000", "--json"]) == 0
    (result,) = results(capsys)
    assert result["passed"] and result["exact"] == (recipe != "cspd") and result["tokens_per_call"] > 1
    assert result["score"] > 0 and result["limit"] > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", "--latents"], "--columns and --latents exclude each other"),
        (["tree", "--columns"], "recipe 'tree' is not possible here"),
        (["smoothed", "--columns"], "uses the rule 'smoothed'"),
        (["draft", "--latents"], "use a rule for latents, such as 'draft+smoothed'"),
    ],
)
def test_a_recipe_for_other_tokens_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_all_is_every_recipe_and_every_rule() -> None:
    everything = {str(recipe) for recipe in all_recipes(columns=False, latents=False)}
    assert everything == {*RECIPES, *RULES} - {"exact"}
    columns, latents = all_recipes(columns=True, latents=False), all_recipes(columns=False, latents=True)
    # A trained network has features of single tokens.
    assert {recipe.rule_name for recipe in (*columns, *latents)} == {name for name in RULES if not RULES[name].head}
    assert not any(recipe.rule.continuous for recipe in columns) and all(recipe.rule.continuous for recipe in latents)
