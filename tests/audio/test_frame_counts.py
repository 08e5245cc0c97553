"""What a frame costs the host outside of the model's calls: launches, uploads and waits, on a device that counts.

The calls of a tiny CSM are recorded and replayed, so that a call is one launch. A frame in which rows leave the batch
costs more and is left out, and so is the one after it.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from own_process import printed

BOOKS = 6
# By recipe: launches, uploads and waits; see `frame_counts.CASES`. A window along the depth costs a wait, and a frame
# one more. Rows that are no longer together add two launches and two uploads.
LIMITS = {
    "plain ahead=0": (17, 3, 1),
    "scd:window=3 ahead=0": (74, 9, 6),
    "draft:window=3 ahead=0": (164, 18, 15),
    "scd ahead=2": (46, 5, 1),
}


@pytest.fixture(scope="module")
def cases(root: Path) -> dict[str, Any]:
    """By recipe and batch, the frames of a decode; in a process of its own, as the device cannot be taken away."""
    return printed(root, "frame_counts.py")


def test_replayed_calls_give_the_tokens_of_eager_ones(cases: dict[str, Any]) -> None:
    """Recorded operators of the backbone and of the depth decoder, on the tensors of the first frame."""
    compared = [name for name in cases if f"{name} eager" in cases]
    assert len(compared) == len(LIMITS) - 1
    for name in compared:
        replayed, eager = cases[name], cases[f"{name} eager"]
        assert replayed["tokens"] == eager["tokens"], name
        assert all(one["graphs"] for one in replayed["frames"]) and not any(one["graphs"] for one in eager["frames"])
        assert len({one["rows"] for one in replayed["frames"]}) > 1, "a weak test: no rows leave"
    for name in (name for name in cases if f"{name} cpu" in cases):
        assert cases[name]["tokens"] == cases[f"{name} cpu"], name


def test_what_a_device_selects_is_what_a_cpu_does(cases: dict[str, Any]) -> None:
    """The waits are the copies of the test."""
    assert cases["by_index"] == {"equal": True, "waits": 4}


def test_a_frame_has_few_launches_uploads_and_waits(cases: dict[str, Any]) -> None:
    for name, (launches, uploads, waits) in LIMITS.items():
        usual = [
            one for rows in (1, 5) for before, one in pairwise(cases[f"{name} B={rows}"]["frames"])
            if not (one["fewer"] or before["fewer"]) or name.startswith("plain") and not one["fewer"]
        ]  # fmt: skip
        assert usual, f"a weak test: {name}"
        for one in usual:
            assert one["launches"] <= launches and one["uploads"] <= uploads and one["waits"] <= waits, (name, one)


def test_a_plain_frame_is_two_graphs_an_upload_and_a_wait(cases: dict[str, Any]) -> None:
    """A step of the backbone, and the loop along the depth; with rows that are all there."""
    for one in cases["plain ahead=0 B=1"]["frames"][1:]:
        assert (one["graphs"], one["uploads"], one["waits"]) == (2, 1, 1) and one["launches"] <= 15, one


def test_eager_calls_cost_more(cases: dict[str, Any]) -> None:
    """What captures gain: the launches of a frame."""
    for name in LIMITS.keys() - {"draft:window=3 ahead=0"}:
        replayed, eager = (cases[f"{name} B=5{how}"]["frames"] for how in ("", " eager"))
        assert sum(one["launches"] for one in replayed) * 3 < sum(one["launches"] for one in eager), name
