"""Text files and their lines, whatever program wrote them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from mmspec import limits

_MARK = "\ufeff"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Opens a text file in UTF-8, or in UTF-16 if its byte order mark says so.

    Raises:
        OSError: If it cannot be opened.
        UnicodeDecodeError: In the block, if it is in another encoding.
    """
    with path.open("rb") as file:
        wide = file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        with TextIOWrapper(file, encoding="utf-16" if wide else "utf-8-sig") as text:
            yield text


def read_text(path: Path, argument: str) -> str:
    r"""A whole text file, with \n at the ends of lines.

    Args:
        path: The file.
        argument: What the user named, for messages.

    Raises:
        ArgumentError: If it has more characters than `limits.FILE_BYTES`.
        OSError: If it cannot be read.
        UnicodeDecodeError: If it is in another encoding.
    """
    with open_text(path) as file:
        content = file.read(limits.FILE_BYTES.value + 1)
    limits.FILE_BYTES.check(f"{argument}: '{path}'", len(content))
    return content


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
