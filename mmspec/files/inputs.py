"""Opening files of unknown origin: regular files only, and no more of them in memory than a limit."""

from __future__ import annotations

import codecs
import errno
import io
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, AnyStr

from mmspec import limits
from mmspec.errors import ArgumentError


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file for reading; links to one are followed.

    It does not wait for the writer of a FIFO. Callers that catch `OSError` of `Path.open` need no change.

    Raises:
        OSError: If the file cannot be opened, or is a folder, device, FIFO or socket.
    """
    refuse_special(path, os.stat(path).st_mode)  # opening a device may have an effect
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        refuse_special(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: Path) -> None:
    """Checks that a library which opens a file by its name will find a regular one, with its content on the disk.

    A file of holes costs who makes it nothing, and who reads it its whole length in memory.

    Raises:
        OSError: As `open_regular`, and if a file of more than `limits.FILE_BYTES` has little but holes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limits.FILE_BYTES.value and not _is_stored(file.fileno(), size // _HOLES):
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, nearly all of them holes", str(path))


_HOLES = 16  # files of weights whose file system compresses zeros still have this part of their length


def _is_stored(descriptor: int, least: int) -> bool:
    """Whether a file has at least so many bytes outside of its holes, where the system can tell."""
    stored = end = 0
    while stored < least:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:  # ENXIO: there is no more data; others: the file system does not tell
            return error.errno != errno.ENXIO
        stored += end - start
    return True


# Files that libraries read whole, whatever their size.
_READ_WHOLE = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".yaml")


def check_files(path: Path, argument: str, levels: int = 3) -> None:
    """Checks the files of a model before libraries open them: all are regular, and texts at most `limits.FILE_BYTES`.

    Args:
        path: A file or a folder; hidden names in it are left out.
        argument: What the user named, for messages.
        levels: Of folders to look into.

    Raises:
        ArgumentError: If there is a device, FIFO or socket among them, or too large a text.
    """
    if path.is_dir():
        for inner in path.iterdir() if levels else ():
            if not inner.name.startswith("."):
                check_files(inner, argument, levels - 1)
        return
    try:
        found = path.stat()
        refuse_special(path, found.st_mode)
        if path.suffix not in _READ_WHOLE and found.st_size > limits.FILE_BYTES.value:
            check_regular(path)
    except FileNotFoundError:  # a link that leads nowhere
        return
    except OSError as error:
        raise ArgumentError(f"{argument}: cannot read '{path}': {error.strerror or error}") from None
    if path.suffix in _READ_WHOLE:
        limits.FILE_BYTES.check(f"{argument}: '{path}'", found.st_size)


def read_bytes(path: Path, argument: str) -> bytes:
    """The content of a regular file of at most `limits.FILE_BYTES`.

    Args:
        path: The file.
        argument: What the user named, for messages.

    Raises:
        ArgumentError: If the file cannot be read, is not a regular one, or is larger.
    """
    try:
        with open_regular(path) as file:
            limits.FILE_BYTES.check(f"{argument}: '{path}'", os.fstat(file.fileno()).st_size)
            content = file.read(limits.FILE_BYTES.value + 1)  # of /proc, sizes are 0
    except ArgumentError:
        raise
    except (OSError, ValueError) as error:  # the latter for a path with a null character
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"{argument}: cannot read '{path}': {reason}") from error
    limits.FILE_BYTES.check(f"{argument}: '{path}'", len(content))
    return content


def encoding_of(start: bytes) -> str:
    """The encoding of a text by its first two bytes: UTF-16 if they are its byte order mark, else UTF-8."""
    return "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def read_text(path: Path, argument: str) -> str:
    r"""The text of a regular file of at most `limits.FILE_BYTES`, with \n at the ends of lines.

    Raises:
        ArgumentError: As `read_bytes`, and if the file is not UTF-8, or UTF-16 with a byte order mark.
    """
    content = read_bytes(path, argument)
    try:
        return io.StringIO(content.decode(encoding_of(content[:2])), newline=None).read()
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{argument}: '{path}' is not UTF-8: {error}") from None


def bounded_lines(file: IO[AnyStr], name: str) -> Iterator[AnyStr]:
    """Yields the lines of a file, with their ends, none of which is longer than a file may be.

    Args:
        file: Opened for bytes or for text.
        name: What it is called, for messages.

    Raises:
        ArgumentError: If a line exceeds `limits.FILE_BYTES`.
    """
    most, number = limits.FILE_BYTES.value, 0
    while line := file.readline(most + 1):
        number += 1
        limits.FILE_BYTES.check(f"{name} line {number}", len(line))
        yield line


def refuse_special(path: Path, mode: int) -> None:
    """Raises an OSError if the mode of a path is not that of a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
