"""Text files and their lines, whatever program wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from mmspec.files.inputs import encoding_of, open_regular

_MARK = "\ufeff"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Opens a text file in UTF-8, or in UTF-16 if its byte order mark says so.

    Raises:
        OSError: If it cannot be opened.
        UnicodeDecodeError: In the block, if it is in another encoding.
    """
    with open_regular(path) as file, TextIOWrapper(file, encoding=encoding_of(file.peek(2)[:2])) as text:
        yield text


def lines_of(text: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, stripped, each with its number from 1.

    Only line feeds and carriage returns end a line, which other marks of Unicode do not: JSON may contain them.

    Args:
        text: An open text file; it splits lines. A byte order mark at the start of a line is dropped: files that were
            joined have several.
    """
    for number, line in enumerate(text, 1):
        if stripped := line.removeprefix(_MARK).strip():
            yield number, stripped


def prompt_lines(text: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines of `lines_of` that hold prompts: those that do not start with #."""
    return ((number, line) for number, line in lines_of(text) if not line.startswith("#"))
