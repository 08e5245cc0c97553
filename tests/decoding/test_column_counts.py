"""What a window of columns costs the host outside of the model; see `test_window_counts.py`."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from own_process import printed

UPLOADS, WAITS = 1, 1
LAUNCHES = {  # the most outside of the model and of its own processors of logits
    "scd": 9,
    "sjd": 9,
    "recycle": 9,
    "draft": 9 + 3 * 10,  # 3 calls of the draft model
    "plain": 8,
}
# Those of processors: the history of columns and the logits; top-k and top-p by cell; what rows that have left cost.
PROCESSORS = {"musicgen": 0, "dia": 2, "higgs": 2, "higgs_v3": 3, "moss": 4, "higgs_repeating": 49, "zonos2": 26}
OTHERS = ("after", "failing", "misread")


@pytest.fixture(scope="module")
def cases(root: Path) -> dict[str, Any]:
    """By model, recipe and batch, the windows of a decode; in a process of its own, which has the device."""
    return printed(root, "column_counts.py")


def usual_windows(name: str, case: dict[str, Any]) -> list[dict[str, Any]]:
    """The windows of a decode, or its steps, that prepare nothing for later ones."""
    steps = case["steps"][2:-1] if name.split(" ")[1] == "plain" else case["windows"]
    return [one for one in steps if not one["new"]]


def test_a_window_has_few_launches_one_upload_and_one_wait(cases: dict[str, Any]) -> None:
    """With guidance, forced cells, logits that depend on earlier columns, and rows that end."""
    for name, case in cases.items():
        if name.endswith(OTHERS):
            continue
        model, recipe, _ = name.split(" ")
        usual, most = usual_windows(name, case), LAUNCHES[recipe.split(":")[0]] + PROCESSORS[model]
        assert len(usual) >= 2, f"a weak test: {name} has {len(usual)} windows"
        for one in usual:
            assert one["uploads"] <= UPLOADS and one["waits"] <= WAITS, (name, one)
            assert one["launches"] <= most, (name, one)


def test_the_next_call_is_launched_before_the_host_waits(cases: dict[str, Any]) -> None:
    """Between two calls of the model the device waits for nothing from the host: no launch, no upload."""
    for name, case in cases.items():
        if name.endswith(OTHERS):
            continue
        steps = case["steps"][2:-1] if name.split(" ")[1] == "plain" else case["windows"]
        ahead = [one for before, one in pairwise(steps)
                 if not one["new"] and before.get("ahead", True) and one.get("ahead", True)]  # fmt: skip
        assert len(ahead) >= 2, f"a weak test: {name} has {len(ahead)} windows"
        assert all(one["idle"] == 0 for one in ahead), (name, ahead)


def test_columns_are_those_of_calls_that_wait_for_the_host(cases: dict[str, Any]) -> None:
    """Rows that end at their own pace, and leave the batch; calls ahead that cannot be captured are made again."""
    compared = [name.removesuffix(" after") for name in cases if name.endswith(" after")]
    assert len(compared) == 8
    for name in compared:
        ahead, after = cases[f"{name} B=4"], cases[f"{name} after"]
        failing = cases.get(f"{name} failing", after)
        assert ahead["tokens"] == after["tokens"] == failing["tokens"], name
        assert ahead["target_calls"] == after["target_calls"] == failing["target_calls"], name
        assert all(one["idle"] > 0 for one in after["windows"][1:-1]), "a weak test: nothing was waited for"
    assert cases["dia scd:window=6 misread"]["tokens"] != cases["dia scd:window=6 after"]["tokens"], "a weak test"


def test_a_row_does_not_depend_on_its_batch(cases: dict[str, Any]) -> None:
    """Row 0 alone and among 4, which take different numbers of windows."""
    for recipe in ("plain", "scd:window=6"):
        alone, among = (cases[f"musicgen {recipe} B={rows}"]["tokens"][0] for rows in (1, 4))
        assert alone == among, recipe
