"""Batches that rows of parts are moved between."""

from __future__ import annotations

import torch

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout


def batch_states(first: int, second: int) -> tuple[BatchState, BatchState]:
    """Batches of so many rows."""
    one, two = (BatchState(range(count), Layout(4), 2, torch.device("cpu")) for count in (first, second))
    return one, two
