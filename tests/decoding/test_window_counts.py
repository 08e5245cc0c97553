"""What a window costs the host outside of the model: launches, uploads and waits, on a device that counts.

A window in which rows leave, or whose width is new, prepares what later windows use; it costs more and is left out.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from own_process import printed

LAUNCHES, UPLOADS, WAITS = 12, 1, 1
PLAIN_UPLOADS = 3  # of a plain step: positions for the call, for constraints, and to append at where rows differ
HEADS = {  # launches at batch 1 and 64
    "medusa:window=4": (25, 26),
    "tree-medusa:branch=2/1": (17, 17),
    "eagle:window=4": (33, 41),
    "tree-eagle:branch=2/1": (32, 37),
    "eagle-2:window=7,depth=2,top=3": (37, 42),
    "hydra:window=4": (31, 32),
    "grid:window=4": (34, 35),
    "block:window=4": (44, 45),
    "kangaroo:window=4": (42, 44),
}
DRAFT_MODELS = {  # waits
    "short-cache:window=4,recent=4": 1,
    "draft-stop:window=4": 3,  # before each draft but the first, and the verification's
    "pearl:window=4": 2,  # for the guess, where a whole window was accepted, and the verification's
}
PER_DRAFTER_CALL = 7  # launches: what a captured call reads and gives, after rows have left, and the draft with its q
# Cases that have tests of their own.
OTHERS = ("after", "failing", "broken", "tree", "misread", "misplaced", "unforeseen")


@pytest.fixture(scope="module")
def cases(root: Path) -> dict[str, Any]:
    """By recipe and batch, the windows of a decode; in a process of its own, as the device cannot be taken away."""
    return printed(root, "window_counts.py")


def test_a_window_has_few_launches_one_upload_and_one_wait(cases: dict[str, Any]) -> None:
    """Exact and relaxed rules and a draft model at batch 1 and 64, with guidance, cuts, constraints and end tokens."""
    others = {*HEADS, *DRAFT_MODELS}
    by_batch = {
        name: case for name, case in cases.items()
        if " B=" in name and not name.startswith("plain") and name.split(" ")[0] not in others
    }  # fmt: skip
    assert {name.split(":")[0] for name in by_batch} == {
        "scd", "sjd", "table", "gsd", "lantern", "beta", "top-m", "typical", "fallback", "pcg", "draft",
        "layer-skip", "recycle", "stand", "retrieval", "tree-table", "tree", "tree-dynamic",
        "tree-sampled",
    }  # fmt: skip
    for name, case in by_batch.items():
        usual = [one for one in case["windows"] if not one["new"]]
        assert len(usual) >= 3, f"a weak test: {name} has {len(usual)} windows"
        for one in usual:
            assert one["launches"] <= LAUNCHES + PER_DRAFTER_CALL * one["drafter_calls"], (name, one)
            assert one["uploads"] <= UPLOADS and one["waits"] <= WAITS, (name, one)


def test_a_window_of_a_head_has_one_upload_and_one_wait(cases: dict[str, Any]) -> None:
    """The networks of the heads are not counted, but the writes to their caches and the masks of their attention."""
    for recipe, most in HEADS.items():
        for rows, launches in zip((1, 64), most, strict=True):
            usual = [one for one in cases[f"{recipe} B={rows}"]["windows"] if not one["new"]]
            assert len(usual) >= (3 if rows == 1 else 1), f"a weak test: {recipe} has {len(usual)} windows"
            for one in usual:
                assert one["launches"] <= launches, (recipe, one)
                assert one["uploads"] <= UPLOADS and one["waits"] <= WAITS, (recipe, one)


def test_draft_models_that_need_the_host(cases: dict[str, Any]) -> None:
    """A short cache reads slots that the host chooses, a chain that stops asks whether to go on, PEARL compares."""
    for recipe, waits in DRAFT_MODELS.items():
        for rows in (1, 64):
            usual = [one for one in cases[f"{recipe} B={rows}"]["windows"] if not one["new"]]
            assert len(usual) >= 3, f"a weak test: {recipe} has {len(usual)} windows"
            for one in usual:
                assert one["launches"] <= LAUNCHES + PER_DRAFTER_CALL * one["drafter_calls"], (recipe, one)
                assert one["uploads"] <= UPLOADS and one["waits"] <= waits, (recipe, one)


def test_a_tree_is_verified_in_one_launch(cases: dict[str, Any]) -> None:
    """Its levels are sampled in one launch each, and a tree of a table in one launch altogether."""
    for recipe, kernel, count in (("tree-table", "_draft_tree", 1), ("tree", "_sample_siblings", 2)):
        for rows in (1, 64):
            usual = [one for one in cases[f"{recipe}:branch=2/1 B={rows}"]["windows"] if not one["new"]]
            assert len(usual) >= 3, f"a weak test: {len(usual)} windows"
            for one in usual:
                assert one["names"]["_walk_tree"] == 1 and one["names"][kernel] == count, one


def test_the_next_call_is_launched_before_the_host_waits(cases: dict[str, Any]) -> None:
    """Between two calls of the model the device waits for nothing from the host: no launch, no upload."""
    for name, case in cases.items():
        if name.startswith(("tree", "retrieval", *HEADS, *DRAFT_MODELS)) or name.endswith(OTHERS):
            continue
        steps = case["steps"][2:-1] if name.startswith("plain") else case["windows"]
        # The first window of a row of them uploads its positions, and the last one has nothing to launch ahead of.
        usual = [one for before, one in pairwise(steps) if not one.get("new") and one.get("ahead", True)
                 and before.get("ahead", True)]  # fmt: skip
        assert len(usual) >= (1 if name.endswith("B=64") else 3), f"a weak test: {name} has {len(usual)} windows"
        for one in usual:
            assert one["idle"] == 0 and one["waits"] <= WAITS, (name, one)
            most = PLAIN_UPLOADS if name.startswith("plain") else 0 if "B=1" in name else UPLOADS
            assert one["uploads"] <= most, (name, one)


def test_tokens_are_those_of_calls_that_wait_for_the_host(cases: dict[str, Any]) -> None:
    """Rows that end at their own pace, and leave the batch; calls ahead that cannot be captured are made again."""
    compared = [name.removesuffix(" after") for name in cases if name.endswith(" after")]
    assert len(compared) == 7
    for name in compared:
        ahead, after = cases[f"{name} ahead"], cases[f"{name} after"]
        assert ahead["tokens"] == after["tokens"] and ahead["target_calls"] == after["target_calls"], name
        failing = cases.get(f"{name} failing", after)
        assert failing["tokens"] == after["tokens"] and failing["target_calls"] == after["target_calls"], name
        assert all(failing.get("kept", [])) and sum(failing.get("reads", [])) <= 1, "the host has its own copy"
        assert all(one["idle"] > 0 for one in after["windows"][:-1]), "a weak test: nothing was waited for"
    misread, after = (cases[f"draft:window=4 {how}"]["tokens"] for how in ("misread", "after"))
    assert misread != after, "a weak test: drafts may follow any token"
    outer = "scd:window=6,refresh=outer,passes=2"
    misplaced, after = (cases[f"{outer} {how}"]["tokens"] for how in ("misplaced", "after"))
    assert misplaced != after, "a weak test: outer layers may read a window anywhere"


def test_a_call_ahead_of_another_window_than_the_next_is_given_up(cases: dict[str, Any]) -> None:
    """Plain steps, which the policy did not foresee, among windows whose calls have been launched."""
    compared = [name.removesuffix(" after unforeseen") for name in cases if name.endswith(" after unforeseen")]
    assert len(compared) == 6
    for name in compared:
        ahead, after = cases[f"{name} ahead unforeseen"], cases[f"{name} after unforeseen"]
        assert ahead["tokens"] == after["tokens"] and ahead["target_calls"] == after["target_calls"], name
        assert any(one["ahead"] for one in ahead["windows"]), f"a weak test: nothing of {name} was launched ahead"


def test_a_row_does_not_depend_on_its_batch(cases: dict[str, Any]) -> None:
    """Row 0 alone and among 64, which take different numbers of windows: positions of one window are not another's."""
    for name in {name.split(" ")[0] for name in cases if "B=64" in name}:
        alone, among = (cases[f"{name} B={rows}"]["tokens"][0] for rows in (1, 64))
        assert alone[:24] == among[:24], name


def test_a_model_never_reads_a_token_of_an_invalid_distribution(cases: dict[str, Any]) -> None:
    """The call after NaN is launched before the host knows of it: a token -1 would be read outside of an embedding."""
    broken = [case for name, case in cases.items() if name.endswith("broken")]
    assert len(broken) == 3 and all("NaN" in case["error"] for case in broken), broken
    assert all(case["lowest"] == 0 for case in broken), broken
