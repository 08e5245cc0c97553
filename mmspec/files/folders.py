"""Files whose names mmspec computes, below a folder that the user names.

The folder may come from a stranger, with links under the names that mmspec writes. None of them is followed: a link in
the place of a file is replaced or not read, and one in the place of a folder is refused. The folder itself may be a
link, since the user named it.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import BinaryIO

from mmspec.errors import ArgumentError
from mmspec.files import swapped_in, writing
from mmspec.files.inputs import refuse_special


@contextmanager
def replacing_inside(folder: Path, name: str | PurePath) -> Iterator[Path]:
    """Yields a temporary path; if the block succeeds, the file there becomes `folder / name`, else it is deleted.

    What has the name before, also a link, device or FIFO, is replaced itself. `folder` and those on the way are made,
    the parents of `folder` are not.

    Raises:
        ArgumentError: If there is a link or a file in the place of a folder on the way.
        OutputError: If the file cannot be written (disk full, no permission).
    """
    path = PurePath(name)
    with writing(folder / path):
        folder.mkdir(exist_ok=True)
        with swapped_in(make_folder(folder, path.parent) / path.name) as partial:
            yield partial


def inside(folder: Path, name: str | PurePath) -> Path:
    """The path of a folder below another, which need not exist.

    Raises:
        ArgumentError: If there is a link or a file in its place, or in that of a folder on the way.
    """
    current = folder
    for part in PurePath(name).parts:
        current /= part
        if os.path.lexists(current) and not is_folder(current):
            raise ArgumentError(f"'{current}' is a link or a file, not a folder; remove it")
    return current


def make_folder(folder: Path, name: str | PurePath) -> Path:
    """Makes a folder below an existing one, with those on the way, and returns its path.

    Raises:
        ArgumentError: As `inside`.
        OSError: If one cannot be made.
    """
    path = inside(folder, name)
    if not is_folder(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def open_inside(path: Path) -> BinaryIO:
    """Opens a file with a computed name for reading.

    Raises:
        OSError: If there is none, or it is a link or no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    return _opened(path, descriptor, "rb")


def end_of(path: Path, count: int) -> bytes:
    """The last bytes of a file with a computed name; fewer of a shorter one, none of a missing one or a link."""
    try:
        with open_inside(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - count))
            return file.read()
    except OSError:
        return b""


def append_inside(path: Path) -> BinaryIO:
    """Opens a file with a computed name for appending; it is made if there is none.

    Raises:
        OSError: If it is a link or no regular file, or cannot be written.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    return _opened(path, os.open(path, flags, 0o666), "ab+")


def is_file(path: Path) -> bool:
    """Whether a path is a regular file, and no link."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, and no link."""
    return stat.S_ISDIR(_mode(path))


def files_inside(folder: Path) -> list[Path]:
    """The regular files in a folder, by name; none if it is a link or missing."""
    return sorted(path for path in folder.iterdir() if is_file(path)) if is_folder(folder) else []


def remove_folder(folder: Path) -> None:
    """Removes a folder with all that is in it as far as that is possible; a link, and what it leads to, stays."""
    if is_folder(folder):
        shutil.rmtree(folder, ignore_errors=True)


def _mode(path: Path) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _opened(path: Path, descriptor: int, mode: str) -> BinaryIO:
    try:
        refuse_special(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, mode)  # type: ignore[return-value]
    except BaseException:
        os.close(descriptor)
        raise
