"""What a window costs the host outside of the model: launches, uploads and waits, on a device that counts.

A window in which rows leave, or whose width is new, prepares what later windows use; it costs more and is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LAUNCHES, UPLOADS, WAITS = 12, 1, 1
PER_DRAFTER_CALL = 7  # launches: what a captured call reads and gives, after rows have left, and the draft with its q


@pytest.fixture(scope="module")
def cases(root: Path) -> dict[str, Any]:
    """By recipe and batch, the windows of a decode; in a process of its own, as the device cannot be taken away."""
    helpers = root / "tests" / "helpers"
    done = subprocess.run(
        [sys.executable, "window_counts.py"], cwd=helpers, env={"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_window_has_few_launches_one_upload_and_one_wait(cases: dict[str, Any]) -> None:
    """Exact and relaxed rules and a draft model at batch 1 and 64, with guidance, cuts, constraints and end tokens."""
    assert {name.split(":")[0] for name in cases} == {
        "scd", "sjd", "table", "gsd", "lantern", "beta", "top-m", "typical", "fallback", "pcg", "draft",
    }  # fmt: skip
    for name, (windows, _) in cases.items():
        usual = [one for one in windows if not one["new"]]
        assert len(usual) >= 3, f"a weak test: {name} has {len(usual)} windows"
        for one in usual:
            assert one["launches"] <= LAUNCHES + PER_DRAFTER_CALL * one["drafter_calls"], (name, one)
            assert one["uploads"] <= UPLOADS and one["waits"] <= WAITS, (name, one)


def test_a_row_does_not_depend_on_its_batch(cases: dict[str, Any]) -> None:
    """Row 0 alone and among 64, which take different numbers of windows: positions of one window are not another's."""
    for name in {name.split(" ")[0] for name in cases}:
        alone, among = (cases[f"{name} B={rows}"][1][0] for rows in (1, 64))
        assert alone[:24] == among[:24], name
