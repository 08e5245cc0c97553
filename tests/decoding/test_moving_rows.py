"""The owner of rows: what it drops and joins, and that drafters leave it to do so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.decoding.rows import Kept, can_join, join_rows, select_rows

CPU = torch.device("cpu")


class Inner:
    ROWS = ("table",)
    COUNTS = ("calls",)

    def __init__(self, rows: range) -> None:
        self.table: Tensor | None = torch.tensor(rows)[:, None] * 10
        self.calls = len(rows)
        self.told: list[str] = []

    def before_move(self) -> None:
        self.told.append("before")

    def after_move(self) -> None:
        self.told.append("after")


class Outer:
    """Holds something of every kind that `ROWS` may name; guided tensors have two rows per row."""

    ROWS = ("plain", "guided", "host", "items", "inner", "nothing", "empty", "absent")

    def __init__(self, rows: range) -> None:
        self.plain = torch.tensor(rows)
        self.guided = torch.cat([self.plain, self.plain + 100])
        self.host, self.items = np.array(rows), [str(row) for row in rows]
        self.inner, self.nothing, self.empty = Inner(rows), None, torch.empty(0)

    def all(self) -> list[Any]:
        table = self.inner.table
        assert table is not None
        return [self.plain.tolist(), self.guided.tolist(), self.host.tolist(), self.items, table.flatten().tolist()]


def expected(rows: list[int]) -> list[Any]:
    return [rows, [*rows, *(row + 100 for row in rows)], rows, list(map(str, rows)), [10 * row for row in rows]]


def state(count: int) -> BatchState:
    return BatchState(range(count), Layout(4), 2, CPU)


def test_rows_are_dropped_everywhere() -> None:
    part = Outer(range(4))
    select_rows(part, Kept([3, 1], 4, CPU))
    assert part.all() == expected([3, 1])
    assert part.inner.told == ["before", "after"] and part.inner.calls == 4


@pytest.mark.parametrize(("places", "rows"), [([1, 3], [0, 7, 2, 8]), ([3, 4], [0, 1, 2, 7, 8])])
def test_rows_join_in_free_places_and_after_the_last(places: list[int], rows: list[int]) -> None:
    part, other = Outer(range(3 if 4 in places or 3 in places else 4)), Outer(range(7, 9))
    join_rows(part, other, places, state(3), state(2))
    assert part.all() == expected(rows)
    assert part.inner.calls == 5 and part.inner.told == ["before", "after"]


class Fixed:
    """A target that takes no rows in."""

    def select_rows(self, row_ids: list[int]) -> None: ...


def test_what_cannot_join_is_found_at_any_depth() -> None:
    part, other = Outer(range(2)), Outer(range(2))
    assert can_join(part, other) and not can_join(part, part.inner) and can_join(None, None)
    part.inner.table = other.inner.table = Fixed()  # type: ignore[assignment]
    assert not can_join(part, other)


def test_drafters_move_no_rows(root: Path) -> None:
    """`EarlyExitTarget` is a target, whose KV cache belongs to another one."""
    for path in [*root.glob("mmspec/drafters/**/*.py"), root / "mmspec" / "continuous" / "jacobi.py"]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name != "EarlyExitTarget":
                named = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                assert not named & {"select_rows", "join"}, f"{path}: {node.name}"


def test_the_default_recipe_imports_no_network_drafter() -> None:
    code = """
import sys, mmspec
pipe = mmspec.load("shapes")
pipe.set_progress_bar_config(disable=True)
pipe("a red circle", recipe="scd", seed=0, output_type="latent")
print(*(name for name in sys.modules if name.startswith(("mmspec.drafters.", "mmspec.training.", "mmspec.masked."))))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    networks = ("block", "eagle", "frame", "grid", "hydra", "kangaroo", "medusa", "one_step", "outer_layers", "runners")
    found = set(out.stdout.split())
    assert "mmspec.drafters.jacobi" in found
    assert not found & {f"mmspec.drafters.{name}" for name in networks}
