"""The files of a folder, in the order in which people number them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path


def natural_order(name: str) -> tuple[tuple[str | int, ...], str]:
    """A key that sorts names by the numbers in them: `img_2` before `img_10`."""
    pieces = re.split(r"(\d+)", name)  # every other one is a number
    return tuple(int(piece) if i % 2 else piece for i, piece in enumerate(pieces)), name


def list_files(folder: Path, suffixes: Collection[str] = (), nested: bool = False) -> list[Path]:
    """The files of a folder in natural order, without hidden ones, such as those that a Mac leaves beside others.

    Args:
        folder: Where they lie.
        suffixes: The endings of names that count, in lower case; empty for all.
        nested: Whether files of its subfolders count too, ordered by their paths.

    Raises:
        OSError: If the folder cannot be listed.
    """
    inside = [path.relative_to(folder) for path in (folder.rglob("*") if nested else folder.iterdir())]
    found = [
        path
        for path in inside
        if not any(part.startswith(".") for part in path.parts)
        and (not suffixes or path.name.lower().endswith(tuple(suffixes)))
        and not (folder / path).is_dir()
    ]
    return [folder / path for path in sorted(found, key=lambda path: [natural_order(part) for part in path.parts])]


def list_folders(folder: Path) -> list[Path]:
    """The folders in a folder in natural order, without hidden ones."""
    found = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
    return sorted(found, key=lambda path: natural_order(path.name))
