"""What a window of columns costs the host outside of the model; see `test_window_counts.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from own_process import printed

UPLOADS, WAITS = 1, 1
PLAIN_UPLOADS, PLAIN_WAITS = 4, 2  # a step: positions; a check of its column, and whether that ends the row
LAUNCHES = {
    "musicgen": {"scd": 75, "sjd": 72, "recycle": 110, "draft": 50},
    "dia": {"scd": 117},
    "higgs": {"scd": 88},
    "higgs_v3": {"scd": 76},
    "moss": {"scd": 125},
}


@pytest.fixture(scope="module")
def cases(root: Path) -> dict[str, Any]:
    """By model, recipe and batch, the windows of a decode; in a process of its own, which has the device."""
    return printed(root, "column_counts.py")


def test_a_window_has_one_upload_and_one_wait(cases: dict[str, Any]) -> None:
    """With guidance, forced cells, logits that depend on earlier columns, and rows that end."""
    for name, case in cases.items():
        model, recipe, _ = name.split(" ")
        if recipe == "plain":
            usual = [one for one in case["steps"][2:-1] if not one["new"]]
            assert usual, f"a weak test: {name}"
            assert all(one["uploads"] <= PLAIN_UPLOADS and one["waits"] <= PLAIN_WAITS for one in usual), (name, usual)
            continue
        usual = [one for one in case["windows"] if not one["new"]]
        for one in usual:
            assert one["uploads"] <= UPLOADS and one["waits"] <= WAITS, (name, one)
            assert one["launches"] <= LAUNCHES[model][recipe.split(":")[0]], (name, one)
        assert len(usual) >= 2, f"a weak test: {name} has {len(usual)} windows"


def test_a_row_does_not_depend_on_its_batch(cases: dict[str, Any]) -> None:
    """Row 0 alone and among 4, which take different numbers of windows."""
    for recipe in ("plain", "scd:window=6"):
        alone, among = (cases[f"musicgen {recipe} B={rows}"]["tokens"][0] for rows in (1, 4))
        assert alone == among, recipe
