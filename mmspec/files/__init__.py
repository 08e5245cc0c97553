"""Atomic writing of files and folders."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mmspec.errors import ArgumentError, OutputError

STDOUT = Path("-")
# The host is part of the name: of processes on other hosts, which may share the folder, nothing is known.
_HOST = re.sub(r"\W", "_", platform.node())
_PARTIAL = re.compile(rf"\.mmspec-{_HOST}-(\d+)-\d+\.part")
_swept: set[Path] = set()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path; if the block succeeds, the file there becomes `path`, else it is deleted.

    A regular file is replaced at once, and a link to one leads to the new file. What is written to a device or a FIFO
    goes there, and for `STDOUT` to stdout. The folder is created if it is missing, its parents are not. Temporary files
    that killed processes have left in it are deleted.

    Raises:
        OutputError: If the file cannot be written (disk full, no permission).
    """
    with writing(path):
        target = path if path == STDOUT else _followed(path)
        if is_stream(target):
            with tempfile.TemporaryDirectory(prefix="mmspec-") as folder:
                partial = Path(folder) / "output"
                yield partial
                _send(partial, target)
            return
        target.parent.mkdir(exist_ok=True)
        with swapped_in(target) as partial:
            yield partial


@contextmanager
def swapped_in(target: Path) -> Iterator[Path]:
    """Yields a temporary path beside `target`; if the block succeeds, its file takes that name, else it is deleted."""
    partial = temporary_path(target)
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields a temporary folder; if the block succeeds, its files are moved into the folder `path`, else it is deleted.

    If there is no such folder, it appears with all its files at once. Otherwise each file is replaced, and files of
    other names stay.

    Raises:
        OutputError: If a file cannot be written.
    """
    with writing(path):
        target = _followed(path)
        partial = temporary_path(target)
        try:
            partial.mkdir()
            yield partial
            if not target.exists():
                partial.rename(target)
                return
            for file in sorted(partial.rglob("*")):
                moved = target / file.relative_to(partial)
                if not file.is_dir():
                    os.replace(file, moved)
                elif moved.is_symlink():
                    raise OutputError(f"cannot write '{moved}': it is a link, not a folder; remove it")
                else:
                    moved.mkdir(exist_ok=True)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def is_stream(path: Path) -> bool:
    """Whether writing to a path sends the bytes elsewhere: to stdout, a device, a FIFO or a socket."""
    if path == STDOUT:
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def check_writable(path: Path, argument: str, stdout: bool = False) -> None:
    """Checks, before any work and without leaving a trace, that `replacing(path)` can succeed.

    Args:
        path: The file to be written; its folder must exist.
        argument: The name of the argument, for the message.
        stdout: Whether "-" stands for stdout; otherwise it is refused, so that no file of this name appears.

    Raises:
        ArgumentError: If the file cannot be written.
    """
    try:
        if path == STDOUT:
            if stdout:
                return
            raise ArgumentError(f"{argument}: '-' (stdout) is not possible here; name a file, or './-'")
        target = _followed(path)
        folder = target.parent
        if not folder.is_dir():
            state = "is not a folder" if folder.exists() else "does not exist"
            raise ArgumentError(f"{argument}: cannot write '{path}': the folder '{folder}' {state}")
        if target.is_dir():
            raise ArgumentError(f"{argument}: cannot write '{path}': it is a folder")
        if is_stream(target):
            if stat.S_ISSOCK(target.stat().st_mode):
                raise ArgumentError(f"{argument}: cannot write '{path}': it is a socket")
            if not os.access(target, os.W_OK):
                raise ArgumentError(f"{argument}: cannot write '{path}': {os.strerror(errno.EACCES)}")
            return
        # The permission bits do not cover read-only mounts and root; creating a temporary file does.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{argument}: cannot write '{path}': {_reason(error)}") from error


def failed_write(error: BaseException) -> bool:
    """Whether an exception says that a disk is full or has failed, as torch and safetensors report it, too."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
    if type(error).__name__ == "SafetensorError":
        return "os error" in str(error)
    # torch names the part of its code that writes archives.
    return isinstance(error, RuntimeError) and "inline_container" in str(error) and "Reader" not in str(error)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns errors of writing a path in the block into an `OutputError`."""
    try:
        yield
    except (OutputError, BrokenPipeError):
        raise
    except Exception as error:
        # An OSError of the block is one of writing: inputs are read before.
        if not isinstance(error, OSError) and not failed_write(error):
            raise
        raise OutputError(f"cannot write '{path}': {_reason(error)}") from error


def _followed(path: Path) -> Path:
    """What a link leads to, which need not exist."""
    return path.resolve() if path.is_symlink() else path


def temporary_path(target: Path) -> Path:
    """A free path for a temporary file or folder beside `target`; those of dead processes are deleted first."""
    folder = target.parent
    if folder not in _swept:
        _swept.add(folder)
        _sweep(folder)
    partial = folder / f".mmspec-{_HOST}-{os.getpid()}-{threading.get_ident()}.part"
    partial.unlink(missing_ok=True)  # a link of this name would be followed
    return partial


def _sweep(folder: Path) -> None:
    with suppress(OSError):  # a folder that cannot be listed, a file of another user
        for entry in folder.iterdir():
            match = _PARTIAL.fullmatch(entry.name)
            if match is None or _alive(int(match[1])):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    if os.name != "posix":  # elsewhere signal 0 is a real one
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user
        return True
    return True


def _send(file: Path, target: Path) -> None:
    with file.open("rb") as source:
        if target == STDOUT:
            sys.stdout.flush()
            shutil.copyfileobj(source, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        # No O_CREAT: a device that has disappeared does not become a file.
        with os.fdopen(os.open(target, os.O_WRONLY), "wb") as stream:
            shutil.copyfileobj(source, stream)


def _reason(error: Exception) -> str:
    """Why writing failed, in the words of the operating system."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
        return " ".join(str(error).split())
    return "the disk is full, or the file is too large"
