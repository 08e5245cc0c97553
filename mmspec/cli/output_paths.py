"""Where the images or sounds of a run go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmspec.errors import ArgumentError
from mmspec.files import check_writable

OPTION = "-o/--output"


def plan(out: Path, count: int, suffixes: Sequence[str] = (".png",)) -> list[Path]:
    """The path of each of `count` files; nothing is created.

    `x.png` is the file itself when there is one, else `x-0.png`, `x-1.png`, ... in the same folder.
    Anything else is a folder, which need not exist yet: `x/0.png`, `x/1.png`, ..., with the first of `suffixes`.
    Numbers have as many digits as the last one, so that names sort in order.

    Raises:
        ArgumentError: When one of them could not be written.
    """
    digits = len(str(count - 1))
    numbers = [str(i).zfill(digits) for i in range(count)]
    endings = " or ".join(suffixes)
    if out.name in ("", *suffixes) and not _is_folder(out):
        raise ArgumentError(f"{OPTION}: '{out}' names no file; give a name ending in {endings}, or a folder")
    if _is_folder(out):
        paths = [out / f"{number}{suffixes[0]}" for number in numbers]
    elif out.suffix.lower() in suffixes:
        paths = [out] if count == 1 else [out.with_name(f"{out.stem}-{number}{out.suffix}") for number in numbers]
    elif out.suffix or out.exists():
        raise ArgumentError(f"{OPTION}: '{out}' must end in {endings} or be a folder")
    else:
        check_writable(out, OPTION)  # the folder that is to be made
        return [out / f"{number}{suffixes[0]}" for number in numbers]
    for path in paths:
        check_writable(path, OPTION)
    return paths


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # a name that is too long, a loop of links
        raise ArgumentError(f"{OPTION}: cannot write '{path}': {error.strerror}") from error
