"""Rows that are put into another batch."""

from __future__ import annotations

import torch

from mmspec.sampling.rows import put_rows


def test_rows_of_one_piece_of_memory_are_written_apart() -> None:
    """As those of a voice that all rows of a batch have: one of another voice takes the place of a row."""
    voices = torch.tensor([1.0, 2.0]).expand(3, -1)
    found = put_rows(voices, torch.tensor([[5.0, 6.0]]), [1])
    assert found.tolist() == [[1.0, 2.0], [5.0, 6.0], [1.0, 2.0]] and voices[1].tolist() == [1.0, 2.0]
