"""The check before a speed-up is printed: a recipe runs on every kind of token that it can draft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mmspec.testing.columns
import mmspec.testing.exactness
import mmspec.testing.latents
from mmspec import registry
from mmspec.cli import exactness_gate
from mmspec.cli.app import main
from mmspec.cli.exactness_gate import gate, gate_on
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


RULE = """
import torch

from mmspec.knobs import Knob
from mmspec.rules import Rule
from mmspec.sampling.rejection import ratio


def sly(factor, above):
    return lambda p, q, x: torch.where(x > above, factor, 1.0) * ratio(p, q, x)


KNOBS = {"factor": Knob(1.2, "of p/q", low=1.0, high=9.0), "above": Knob(64, "of ids above it", low=0, high=99_999)}
SLY = Rule("a rule that claims too much", "sly_rule:sly", knobs=KNOBS, exact=True)
"""


@pytest.fixture
def sly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A rule of another package that calls itself exact and is not, for ids above 64."""
    (tmp_path / "sly_rule.py").write_text(RULE)
    (tmp_path / "sly-1.dist-info").mkdir()
    (tmp_path / "sly-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sly\nVersion: 1\n")
    (tmp_path / "sly-1.dist-info" / "entry_points.txt").write_text("[mmspec.rules]\nsly = sly_rule:SLY\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.installed.cache_clear()
    yield
    registry.installed.cache_clear()


@pytest.mark.parametrize(
    ("recipe", "ok"), [("sly", False), ("draft+sly:factor=1.1,above=400", False), ("sly:factor=1.0", True)]
)
def test_a_foreign_rule_sees_a_large_vocabulary(sly: None, recipe: str, ok: bool) -> None:
    assert mmspec.testing.exactness.check(recipe, samples=6_000).ok
    assert gate(parse(recipe)).ok == ok


def test_check_tells_of_a_foreign_rule(sly: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "sly", "--samples", "20000"]) == 1
    assert "FAILED  (exact)" in capsys.readouterr().out


class Model:
    """Tokens of a large vocabulary, in which a rule or drafter that claims too much prefers the first."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, prompts: list[str], *, recipe: Recipe, seed: list[int], output_type: str) -> Any:
        self.rows.append(len(prompts))
        generators = [torch.Generator().manual_seed(one) for one in seed]
        tokens = torch.stack([torch.randint(700, (16,), generator=g) for g in generators])
        if float(recipe.knobs.get("factor", 1)) > 1 or recipe.knobs.get("window") == 9:
            tokens = torch.where(tokens > 600, 0, tokens)
        return SimpleNamespace(tokens=tokens, stats=SimpleNamespace(target_calls=1))


def test_a_foreign_rule_runs_on_the_model(sly: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no toy sees, since it begins at a larger id than theirs, the model's own tokens show."""
    monkeypatch.setattr(exactness_gate, "gate", lambda recipe: GOOD)
    for recipe, ok in (("draft+sly:factor=9.0,above=600", False), ("draft+sly:factor=1.0", True), ("draft", True)):
        model = Model()
        assert gate_on(model, "x", 48)(parse(recipe)).ok == ok, recipe
        assert model.rows == ([48, 16, 48, 16] if "sly" in recipe else [])


def test_a_foreign_drafter_runs_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness_gate, "gate", lambda recipe: GOOD)
    for foreign, recipe, ok in (
        (True, "draft:window=9", False),
        (True, "draft:window=4", True),
        (False, "draft", True),
    ):
        monkeypatch.setattr(exactness_gate, "RECIPES", {"plain": None} if foreign else {"draft": None})
        model = Model()
        assert gate_on(model, "x", 48)(parse(recipe)).ok == ok, recipe
        assert model.rows == ([48, 16, 48, 16] if foreign else [])
