"""Log records of commands: one format, on stderr, as detailed as `-v` and `--log-level` say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OWN = logging.getLogger("mmspec")


class LogLevel(StrEnum):
    """How much a server says about itself."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def _be_verbose(count: int) -> int:
    if count:
        _OWN.setLevel(logging.INFO if count == 1 else logging.DEBUG)
    return count


Verbose = Annotated[
    int,
    typer.Option(
        "-v",
        "--verbose",
        count=True,
        callback=_be_verbose,
        show_default=False,
        help="Log what is done on stderr; twice for details.",
    ),
]


@contextmanager
def logged() -> Iterator[None]:
    """Writes log records to stderr during the block: warnings, and what `-v` and `set_level` add of mmspec's own."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    before = _OWN.level
    _OWN.setLevel(logging.WARNING)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        _OWN.setLevel(before)


def set_level(level: LogLevel | None, default: LogLevel) -> None:
    """Shows mmspec's own records from a level on; without one from the default's on, or more if `-v` asks for it."""
    if level is not None:
        _OWN.setLevel(level.upper())
    else:
        _OWN.setLevel(min(_OWN.level, getattr(logging, default.upper())))
