"""Threads of the CPU that a command computes with: as many as it is told, one for the models of the package.

These models are so small that a second thread gains little, and costs much where other processes want the cores, too:
the threads of a call wait for each other many times in each layer. The number is one of the whole process, so that
only commands set it, and they set it back at their end; a call in Python leaves it alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from mmspec import limits

VARIABLE = "MMSPEC_THREADS"


@dataclass
class _Command:
    """What the running command knows of its threads.

    Attributes:
        asked: Whether it was told their number.
        large: Whether it has loaded a model that is not one of the package.
        before: The number before it has set one.
    """

    asked: bool = False
    large: bool = False
    before: int | None = None


_RUNNING = _Command()


def _set(count: int) -> None:
    import torch

    if _RUNNING.before is None:
        _RUNNING.before = torch.get_num_threads()
    torch.set_num_threads(count)


def _ask(count: int | None) -> int | None:
    if count is not None:
        limits.THREADS.check("--threads", count)
        _RUNNING.asked = True
        _set(count)
    return count


Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        envvar=VARIABLE,
        callback=_ask,
        show_default="torch's; 1 for the models of the package",
        help="CPU threads.",
    ),
]


def suit_threads(model: str) -> None:
    """Uses one thread if a command was told no number and has loaded models of the package only.

    Args:
        model: The model that it is about to load.
    """
    from mmspec.loading import MODELS

    _RUNNING.large |= model not in MODELS
    if _RUNNING.asked or "OMP_NUM_THREADS" in os.environ:
        return
    if not _RUNNING.large:
        _set(1)
    elif _RUNNING.before is not None:
        _set(_RUNNING.before)


@contextmanager
def own_threads() -> Iterator[None]:
    """A block after which torch has as many threads as before."""
    global _RUNNING
    outer, _RUNNING = _RUNNING, _Command()
    try:
        yield
    finally:
        if _RUNNING.before is not None:
            sys.modules["torch"].set_num_threads(_RUNNING.before)
        _RUNNING = outer
