"""How often this process has compiled a kernel or captured a CUDA graph.

A call in which that happened takes up to seconds more than any later one, so that its time says nothing about the next.
"""

from __future__ import annotations

from itertools import count

_events = count()
_last = 0


def record_setup() -> None:
    """Notes that something was compiled or captured; safe in threads."""
    global _last
    _last = next(_events) + 1


def setups() -> int:
    """A number that changes whenever something is compiled or captured, in any thread."""
    return _last
