"""The figure of predicted and measured tokens per call is that of its file, whose predictions are near."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "examples/exact_methods"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("figure", "predicted"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module("predicted")


def test_the_figure_is_drawn_from_its_file(script: ModuleType) -> None:
    assert script.draw(script.load()).svg() + "\n" == script.FIGURE.read_text(encoding="utf-8")


def test_predictions_are_near(script: ModuleType) -> None:
    found = script.load()
    apart = sorted(abs(pair.predicted / pair.measured - 1) for pair in found)
    assert {pair.model for pair in found} == set(script.MODELS)
    assert apart[-1] <= script.BAND


def test_measured_figures_are_those_of_the_results(script: ModuleType) -> None:
    for pair in script.load():
        cells = script.measured(pair.model)
        name = f"{pair.recipe}:window={pair.window}"
        value, low, high, samples = cells.get(name) or cells[pair.recipe]
        assert (pair.measured, pair.low, pair.high) == tuple(round(number, 2) for number in (value, low, high))
        assert pair.samples == samples
