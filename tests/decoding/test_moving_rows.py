"""The owner of rows: what it drops and joins, and that drafters leave it to do so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batch_states import batch_states
from torch import Tensor

from mmspec.decoding.rows import can_join, join_rows, select_rows
from mmspec.errors import PluginError
from mmspec.sampling.rows import PerRow


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

    ROWS = ("plain", "guided", "host", "items", "inner", "nothing", "empty")

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


def test_rows_are_dropped_everywhere() -> None:
    part = Outer(range(4))
    select_rows(part, [3, 1], 4)
    assert part.all() == expected([3, 1])
    assert part.inner.told == ["before", "after"] and part.inner.calls == 4


@pytest.mark.parametrize(("places", "rows"), [([1, 3], [0, 7, 2, 8]), ([3, 4], [0, 1, 2, 7, 8])])
def test_rows_join_in_free_places_and_after_the_last(places: list[int], rows: list[int]) -> None:
    part, other = Outer(range(3)), Outer(range(7, 9))
    join_rows(part, other, places, *batch_states(3, 2))
    assert part.all() == expected(rows)
    assert part.inner.calls == 5 and part.inner.told == ["before", "after"]


class Fixed:
    """A target that takes no rows in."""

    def forward(self) -> None: ...


def test_what_cannot_join_is_found_at_any_depth() -> None:
    part, other = Outer(range(2)), Outer(range(2))
    assert can_join(part, other) and not can_join(part, part.inner) and can_join(None, None)
    part.inner.table = other.inner.table = Fixed()  # type: ignore[assignment]
    assert not can_join(part, other)


class Cache:
    ROWS = PerRow("keys", dim=1), "pairs", "by_name", PerRow("seen", fill=7), PerRow("latest", latest=True)

    def __init__(self, rows: range, length: int) -> None:
        row = torch.tensor(rows)
        self.keys = row.expand(2, -1)
        self.pairs, self.by_name = ((row, row + 10), (row + 20,)), {"a": row + 30, "b": None}
        self.seen = row[:, None].expand(-1, length)
        self.latest = torch.stack([row + 50] * (length - 1) + [row], dim=1)

    def all(self) -> list[Any]:
        (one, two), (three,) = self.pairs
        by_name = self.by_name["a"]
        assert by_name is not None
        found = [self.keys[0], one, two - 10, three - 20, by_name - 30, self.seen[:, 0], self.latest[:, -1]]
        return [each.tolist() for each in found]


def test_rows_along_other_axes_and_in_tuples_and_dicts() -> None:
    part, other = Cache(range(3), 2), Cache(range(7, 9), 3)
    select_rows(part, [2, 0], 3)
    assert part.all() == [[2, 0]] * 7
    join_rows(part, other, [1, 2], *batch_states(2, 2))
    assert part.all() == [[2, 7, 8]] * 7
    assert part.seen.tolist() == [[2, 2, 7], [7, 7, 7], [8, 8, 8]] and part.latest.shape == (3, 1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("plain", range(3), "plain is named in ROWS, and has 3 rows along axis 0 in a batch of 2; it must"),
        ("nothing", range(2), "Outer.nothing: NoneType cannot join Tensor; `before_join` makes both"),
        ("empty", range(2), "Outer.empty has no rows in one of two batches; `before_join` makes both"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: range, message: str) -> None:
    part, other = Outer(range(2)), Outer(range(2))
    setattr(part, name, torch.tensor(value))
    with pytest.raises(PluginError, match=message):
        join_rows(part, other, [2, 3], *batch_states(2, 2))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("plan",), "Outer has no attribute 'plan', which it names in ROWS"),
        (("other",), "other is named in ROWS, and is a SimpleNamespace, which has no ROWS of its own"),
        (("number",), "number is named in ROWS, and has no such axis along axis 0 in a batch of 2"),
    ],
)
def test_what_cannot_be_moved_is_refused(names: tuple[str, ...], message: str) -> None:
    part: Any = Outer(range(2))
    part.ROWS, part.other, part.number = names, SimpleNamespace(), torch.tensor(3)
    with pytest.raises(PluginError, match=message):
        select_rows(part, [1], 2)


def test_lists_have_an_item_for_each_row() -> None:
    one, two = Outer(range(2)), Outer(range(2))
    one.items = two.items = ["a", "b", "c", "d"]  # such as one for each layer, or of guidance
    message = "items is named in ROWS, and has 4 items in a batch of 2 rows"
    with pytest.raises(PluginError, match=message):
        select_rows(one, [1], 2)
    with pytest.raises(PluginError, match=message):
        join_rows(two, Outer(range(2)), [2, 3], *batch_states(2, 2))


def test_a_text_is_no_tuple_of_names() -> None:
    part = Outer(range(2))
    part.ROWS = "plain"  # type: ignore[assignment]
    with pytest.raises(PluginError, match=r"Outer.ROWS='plain' is not allowed; it must be a tuple: \('plain',\)"):
        select_rows(part, [1], 2)


MOVERS = {"CUDAGraphTarget", "CapturedDepth", "MovesRows"}


def test_nothing_else_moves_rows(root: Path) -> None:
    """Captured calls read rows where they lie; batches join, and their parts leave it to the owner of rows."""
    for path in [*root.glob("mmspec/**/*.py"), *root.glob("vision/**/*.py"), *root.glob("audio/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in MOVERS:
                assert "select_rows" not in {each.name for each in node.body if isinstance(each, ast.FunctionDef)}, path


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
