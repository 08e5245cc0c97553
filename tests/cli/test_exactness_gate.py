"""The check before a speed-up is printed: a recipe runs on every kind of token that it can draft."""

from __future__ import annotations

import pytest

import mmspec.testing.columns
import mmspec.testing.exactness
import mmspec.testing.latents
from mmspec.cli.exactness_gate import gate
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse
from mmspec.testing.exactness import ExactnessResult

GOOD = ExactnessResult(tv=0.0, floor=0.0, limit=0.1, samples=1, tokens_per_call=1.0)
BAD = ExactnessResult(tv=1.0, floor=0.0, limit=0.1, samples=1, tokens_per_call=1.0)


@pytest.mark.parametrize(
    ("recipe", "checked"),
    [
        ("draft", ["tokens", "columns"]),
        ("scd:window=4", ["tokens", "columns"]),
        ("scd:start=table", ["tokens", "columns"]),
        ("tree", ["tokens"]),
        ("scd+smoothed", ["latents"]),
    ],
)
@pytest.mark.parametrize("columns", [GOOD, BAD])
def test_kinds_of_tokens(
    recipe: str, checked: list[str], columns: ExactnessResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str] = []

    def good(kind: str) -> ExactnessResult:
        kinds.append(kind)
        return GOOD

    def on_columns(recipe: Recipe) -> ExactnessResult:
        kinds.append("columns")
        if "table" in str(recipe):
            raise ArgumentError("start must be another")
        return columns

    monkeypatch.setattr(mmspec.testing.exactness, "check", lambda recipe: good("tokens"))
    monkeypatch.setattr(mmspec.testing.latents, "check_latents", lambda recipe: good("latents"))
    monkeypatch.setattr(mmspec.testing.columns, "check_columns", on_columns)
    result = gate(parse(recipe))
    assert kinds == checked
    assert result.ok == (columns.ok or "columns" not in checked or "table" in recipe)


def test_first_layers_that_the_toys_do_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def check(recipe: Recipe) -> ExactnessResult:
        checked.append(int(recipe.knobs["layers"]))
        return GOOD

    monkeypatch.setattr(mmspec.testing.exactness, "check", check)
    monkeypatch.setattr(mmspec.testing.columns, "check_columns", check)
    for layers in (2, 8):
        gate(parse(f"layer-skip:layers={layers}"))
    assert set(checked[: len(checked) // 2]) == {2} and set(checked[len(checked) // 2 :]) == {3}
