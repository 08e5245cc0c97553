"""Batches that rows of parts are moved between."""

from __future__ import annotations

import torch

from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout


def batch_states(*rows: int) -> list[BatchState]:
    """One batch per number of rows."""
    return [BatchState(range(count), Layout(4), 2, torch.device("cpu")) for count in rows]
