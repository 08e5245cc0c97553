"""Atomic writing of files."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmspec.errors import ArgumentError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same folder; it is renamed to `path` if the block succeeds, else deleted.

    The folder is created if it is missing, its parents are not.

    Raises:
        ArgumentError: If the file cannot be written (disk full, no permission).
    """
    partial = path.with_name(f".mmspec-{os.getpid()}-{threading.get_ident()}.part")
    try:
        path.parent.mkdir(exist_ok=True)
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise ArgumentError(f"cannot write '{path}': {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: Path, argument: str) -> None:
    """Checks, before any work and without leaving a trace, that `replacing(path)` can succeed.

    Args:
        path: The file to be written; its folder must exist.
        argument: The name of the argument, for the message.

    Raises:
        ArgumentError: If the file cannot be written.
    """
    folder = path.parent
    try:
        if not folder.is_dir():
            state = "is not a folder" if folder.exists() else "does not exist"
            raise ArgumentError(f"{argument}: cannot write '{path}': the folder '{folder}' {state}")
        if path.is_dir():
            raise ArgumentError(f"{argument}: cannot write '{path}': it is a folder")
        # The permission bits do not cover read-only mounts and root; creating a temporary file does.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ArgumentError(f"{argument}: cannot write '{path}': {error.strerror or error}") from error
