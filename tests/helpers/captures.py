"""Captures on a CPU, which has no graphs: a captured call reads what the target read that it was captured for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Captures:
    """Counts captures, and replays them as graphs.

    Attributes:
        count: The number of captures.
        is_on: Whether targets capture; what patches `use_cuda_graphs` reads it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_on = True

    def call(self, call: Any, read: Callable[..., Any]) -> Any:
        """Takes the place of `mmspec.decoding.captured_calls.CapturedCall.__call__`."""
        if not hasattr(call, "captured"):
            self.count += 1
            call.captured = read
        return call._run(call.captured)
