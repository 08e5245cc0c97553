"""One process at a time in a results folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mmspec.errors import ArgumentError, MMSpecError, OutputError

FILE = ".mmspec.lock"
_PARTIAL = ".mmspec-*.part"  # the temporary files of `mmspec.files.replacing`


@contextmanager
def locked(folder: Path, argument: str) -> Iterator[None]:
    """Holds the lock of a folder during a block; the system releases it if the process is killed.

    Temporary files that a killed process left in the folder are deleted first. The lock's file stays in the folder,
    unless the block refuses its input before the first run has written anything.

    Args:
        folder: An existing folder.
        argument: What the user named, for messages.

    Raises:
        ArgumentError: If another process holds the lock, or the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    new = not os.path.lexists(folder / FILE)
    lock = FileLock(folder / FILE)
    try:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            time.sleep(0.05)  # a process that looks whether it is held holds it for a moment
            lock.acquire(blocking=False)
    except Timeout:
        raise ArgumentError(
            f"{argument}: '{folder}' is in use by another mmspec process; wait until it ends, or name another folder"
        ) from None
    except (OSError, NotImplementedError) as error:  # the latter where a file system has no locks
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"{argument}: cannot lock '{folder}': {reason}; name another folder") from error
    try:
        for left in folder.rglob(_PARTIAL):
            with suppress(OSError):  # a folder, a file of another user
                left.unlink(missing_ok=True)
        yield
    except OutputError:
        raise
    except MMSpecError:
        if new:
            (folder / FILE).unlink(missing_ok=True)
        raise
    finally:
        lock.release()


def is_own_file(name: str) -> bool:
    """Whether a file is the lock or a leftover of this module's folders, which make no folder "not empty"."""
    return name == FILE or (name.startswith(".mmspec-") and name.endswith(".part"))
