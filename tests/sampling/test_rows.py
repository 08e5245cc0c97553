"""Rows that are put into another batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmspec.sampling.rows import put_rows


def test_rows_of_one_piece_of_memory_are_written_apart() -> None:
    """As those of a voice that all rows of a batch have: one of another voice takes the place of a row."""
    voices = torch.tensor([1.0, 2.0]).expand(3, -1)
    found = put_rows(voices, torch.tensor([[5.0, 6.0]]), [1])
    assert found.tolist() == [[1.0, 2.0], [5.0, 6.0], [1.0, 2.0]] and voices[1].tolist() == [1.0, 2.0]


class _Filled(TorchDispatchMode):
    """Sees whether anything is filled."""

    seen = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= any(word in str(function) for word in ("full", "fill", "zero"))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("row_ids", "slots", "filled"), [([2, 3], 5, False), ([0, 2], 5, False), ([2, 3], 7, True), ([1, 2], 4, True)]
)
def test_a_cache_is_not_filled_for_rows_that_are_appended(row_ids: list[int], slots: int, filled: bool) -> None:
    own, new = torch.arange(20.0).reshape(4, 5), torch.arange(4.0 * slots).reshape(4, slots) + 100
    with _Filled() as fill:
        found = put_rows(own, new, row_ids, cfg_factor=2, fill=-1)
    rows, most = max(row_ids) + 1, max(5, slots)
    expected = torch.full((2, rows, most), -1.0)
    expected[:, :2, :5] = own.view(2, 2, 5)
    expected[:, row_ids] = -1
    expected[:, row_ids, :slots] = new.view(2, 2, slots)
    assert torch.equal(found, expected.flatten(0, 1)) and fill.seen is filled
