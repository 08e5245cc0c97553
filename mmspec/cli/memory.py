"""Sizes that do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmspec.errors import ArgumentError


@contextmanager
def bounded_memory(arguments: str) -> Iterator[None]:
    """Turns a failed allocation inside the block into the error of the arguments that asked for it.

    Raises:
        ArgumentError: If memory does not suffice.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        # torch raises OutOfMemoryError on devices and a plain RuntimeError on the CPU.
        known = (
            "can't allocate memory",
            "not enough memory",
            "out of memory",
            "invalid number of elements",
            "overflow",
        )
        if not isinstance(error, MemoryError) and not any(words in text for words in known):
            raise
        raise ArgumentError(f"{arguments} need more memory than there is; choose smaller numbers") from None
