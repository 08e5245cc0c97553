"""Memory that nothing has been written to yet, filled so that whatever depends on it is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Within it, new tensors are NaN, or the largest integer, which is no index."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.zeros(1).new_empty(2).isnan().all() and torch.empty(1, dtype=torch.int64) > 2**60
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
