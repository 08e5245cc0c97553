"""Paths of the files that a run writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmspec import limits
from mmspec.errors import ArgumentError
from mmspec.files import STDOUT, check_writable, is_stream

OPTION = "-o/--output"


def plan(out: Path, count: int, suffixes: Sequence[str] = (".png",)) -> list[Path]:
    """Returns the path of each of `count` files; creates nothing.

    A single file is written to `x.png` itself, several to `x-0.png`, `x-1.png`, ... in the same folder. A name without
    one of `suffixes` is a folder, which need not exist yet: `x/0.png`, `x/1.png`, ..., with the first of `suffixes`.
    All numbers have as many digits as the last one, so that the names sort in order. A single file may also be `-`,
    which is stdout, or a device or FIFO of any name.

    Raises:
        ArgumentError: When a path cannot be written, or is neither a folder nor ends in one of `suffixes`.
    """
    limits.OUTPUTS.check("outputs", count)
    if out == STDOUT or (not _is_folder(out) and is_stream(out)):
        if count > 1:
            raise ArgumentError(f"{OPTION}: '{out}' takes one file, not {count}; name a folder")
        check_writable(out, OPTION, stdout=True)
        return [out]
    digits = len(str(count - 1))
    numbers = [str(i).zfill(digits) for i in range(count)]
    endings = " or ".join(suffixes)
    if out.name in ("", *suffixes) and not _is_folder(out):
        raise ArgumentError(f"{OPTION}: '{out}' is not a file name; give a name ending in {endings}, or a folder")
    if _is_folder(out):
        paths = [out / f"{number}{suffixes[0]}" for number in numbers]
    elif out.suffix.lower() in suffixes:
        paths = [out] if count == 1 else [out.with_name(f"{out.stem}-{number}{out.suffix}") for number in numbers]
    elif out.suffix or out.exists():
        raise ArgumentError(f"{OPTION}: '{out}' must end in {endings} or be a folder")
    else:
        check_writable(out, OPTION)  # the new folder
        return [out / f"{number}{suffixes[0]}" for number in numbers]
    for path in paths:
        if path != out and (path.is_symlink() or is_stream(path)):
            raise ArgumentError(f"{OPTION}: '{path}' is a link or a device; remove it, or name another folder")
        check_writable(path, OPTION)
    return paths


def read_output(text: str | Path) -> Path:
    """The value of the option, from the words of a command line; a default, which is a path, is returned as it is.

    Raises:
        ArgumentError: When it is empty, or has the ending of a file and the slash of a folder.
    """
    if isinstance(text, Path):
        return text
    if not text.strip():
        raise ArgumentError(f"{OPTION}: '{text}' is empty; name a file or a folder")
    path = Path(text)
    if text.endswith("/") and path.suffix and not path.is_dir():
        raise ArgumentError(f"{OPTION}: '{text}' ends in a slash but has the ending of a file; leave one of them out")
    return path


def check_folder(folder: Path, option: str, file: str = "config.json") -> None:
    """Checks, before any work, that the folder of a drafter can be written.

    Args:
        folder: The folder, which need not exist yet.
        option: The option that names it, for the message.
        file: One that is written there.

    Raises:
        ArgumentError: When it can neither be created nor written to.
    """
    if folder.is_dir():
        check_writable(folder / file, option)
    elif folder.exists():
        raise ArgumentError(f"{option}: cannot write '{folder}': it is a file, not a folder")
    else:
        check_writable(folder, option)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # a name that is too long, a loop of links
        raise ArgumentError(f"{OPTION}: cannot write '{path}': {error.strerror}") from error
