"""Where the files of samples are kept: each by itself, or in archives."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mmspec.bulk.folder import SampleEntry, ShardFolder
from mmspec.bulk.media import is_whole, write_durably
from mmspec.bulk.packed import PackedStore
from mmspec.bulk.parquet import ParquetArchive
from mmspec.bulk.webdataset import TarArchive
from mmspec.errors import unknown_name
from mmspec.files.folders import inside, make_folder

FORMATS = ("files", "webdataset", "parquet")
DEFAULT_PACK = 1000  # samples of an archive


class Store(Protocol):
    """Keeps the files of samples; a sample is finished when its file is kept and the journal has it."""

    def path(self, name: str, suffix: str) -> str:
        """The file of a sample, as the journal names it."""
        ...

    def write(self, file: str, content: bytes) -> None:
        """Keeps a file; it is on the disk when the method returns."""
        ...

    def has(self, folder: ShardFolder, entry: SampleEntry) -> bool:
        """Whether a sample that the journal of a process has is still kept."""
        ...

    def settle(self, entries: list[SampleEntry], last: bool) -> None:
        """Called after the journal has new samples, and with `last` after all of them."""
        ...


class FileStore:
    """A file per sample, `samples/ab/abcdef.png`; 256 folders, since file systems are slow with millions of names.

    Args:
        output: The folder of the whole output.
    """

    def __init__(self, output: Path) -> None:
        self.output = output

    def path(self, name: str, suffix: str) -> str:
        return f"samples/{name[:2]}/{name}{suffix}"

    def write(self, file: str, content: bytes) -> None:
        make_folder(self.output, Path(file).parent)
        write_durably(content, self.output / file)

    def has(self, folder: ShardFolder, entry: SampleEntry) -> bool:
        # The name is computed, never read: journals of others cannot point out of the folder.
        file = Path(self.path(entry.name, Path(entry.file).suffix))
        return is_whole(inside(self.output, file.parent) / file.name)

    def settle(self, entries: list[SampleEntry], last: bool) -> None:
        """Does nothing: a file is kept once it is written."""


def check_format(format: str) -> None:
    """Checks that a format exists and that what it needs is installed.

    Raises:
        UnknownNameError: If there is no such format.
        ArgumentError: If a package that the format needs is not installed.
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if format == "parquet":
        ParquetArchive()


def open_store(format: str, folder: ShardFolder, fingerprint: str, pack: int = DEFAULT_PACK) -> Store:
    """The store of a process.

    Args:
        format: A name of `FORMATS`.
        folder: Of the process.
        fingerprint: Of the weights.
        pack: Samples of an archive.

    Raises:
        UnknownNameError: If there is no such format.
        ArgumentError: If a package that the format needs is not installed.
    """
    check_format(format)
    if format == "files":
        return FileStore(folder.output)
    if format == "webdataset":
        return PackedStore(folder, TarArchive(), pack, fingerprint)
    return PackedStore(folder, ParquetArchive(), pack, fingerprint)
