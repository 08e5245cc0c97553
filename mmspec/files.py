"""Files that are either written whole or not at all."""

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
    """Yield a path in the same folder to write to; it becomes `path` when the block ends well, else it is deleted.

    The folder is made when it is missing, its parents are not.

    Raises:
        ArgumentError: When the system refuses (disk full, no permission).
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
    """Find out, before any work and leaving no trace, whether `replacing(path)` can succeed.

    Args:
        path: The file to be written; its folder must exist.
        argument: What the user calls this path, for the message.

    Raises:
        ArgumentError: When it cannot.
    """
    folder = path.parent
    try:
        if not folder.is_dir():
            state = "is not a folder" if folder.exists() else "does not exist"
            raise ArgumentError(f"{argument}: cannot write '{path}': the folder '{folder}' {state}")
        if path.is_dir():
            raise ArgumentError(f"{argument}: cannot write '{path}': it is a folder")
        # Asking the permission bits says nothing about read-only mounts or about root; a nameless file does.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ArgumentError(f"{argument}: cannot write '{path}': {error.strerror or error}") from error
