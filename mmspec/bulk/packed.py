"""Samples in archives, each of which appears whole or not at all.

A sample is first a staged file of its own; when enough are staged, the names of a pack are appended to `packs.jsonl`,
its archive is written, and the staged files are deleted, in this order. A process that is killed in between finds in
the next run what it has to do: the names of a pack say which samples an archive has, and the archive's existence
whether it is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from mmspec.bulk.folder import STAGED, SampleEntry, ShardFolder
from mmspec.bulk.journal import JournalFile
from mmspec.bulk.media import is_whole, write_durably
from mmspec.files.folders import files_inside, inside, is_file, make_folder, remove_folder


@dataclass(frozen=True)
class Pack:
    """The samples of an archive.

    Attributes:
        archive: The number of the archive among those of its process.
        names: Of the samples, in their order.
    """

    archive: int
    names: list[str]


class Archive(Protocol):
    """A format of archives. The same samples make the same bytes."""

    suffix: str

    def is_whole(self, path: Path) -> bool:
        """Whether a file of the format has its end; a link is none."""
        ...

    def write(self, path: Path, entries: Sequence[SampleEntry], files: Sequence[Path], weights: str) -> None:
        """Writes an archive of samples and their files atomically."""
        ...


class PackedStore:
    """Archives of a number of samples, `00000-of-00004-000000.tar`, as a `mmspec.bulk.stores.Store`.

    Args:
        folder: Of the process.
        archive: The format.
        size: Samples of an archive; the last one of a run may have fewer.
        weights: The fingerprint of the weights, which the archives name.
    """

    def __init__(self, folder: ShardFolder, archive: Archive, size: int, weights: str = "") -> None:
        self.folder = folder
        self.archive = archive
        self.size = size
        self.weights = weights
        self.packs = JournalFile(folder.path / "packs.jsonl", Pack)
        self.waiting: dict[str, SampleEntry] = {}
        self._recover()

    def path(self, name: str, suffix: str) -> str:
        return f"{name}{suffix}"

    def write(self, file: str, content: bytes) -> None:
        write_durably(content, make_folder(self.folder.path, STAGED) / file)

    def has(self, folder: ShardFolder, entry: SampleEntry) -> bool:
        if entry.name in self._packed[folder.label]:
            return True
        # Files that a run with another number of processes has staged are generated anew: no process would pack them.
        return folder is self.folder and entry.name in self.waiting

    def settle(self, entries: list[SampleEntry], last: bool) -> None:
        self.waiting |= {entry.name: entry for entry in entries}
        while len(self.waiting) >= self.size or (last and self.waiting):
            pack = list(self.waiting.values())[: self.size]
            number = 1 + max((each.archive for each, _ in self.packs.read()), default=-1)
            self.packs.append([Pack(number, [entry.name for entry in pack])])
            self._finish(number, pack)
            for entry in pack:
                del self.waiting[entry.name]
        if last:
            for other in self.folder.everyone()[:-1]:
                if other.shard.count != self.folder.shard.count:
                    remove_folder(other.staged)

    def archive_path(self, folder: ShardFolder, number: int) -> Path:
        """The path of an archive of a process."""
        return folder.output / f"{folder.label}-{number:06}{self.archive.suffix}"

    @cached_property
    def _packed(self) -> dict[str, set[str]]:
        """For each process, the names of the samples that its archives contain."""
        found = dict[str, set[str]]()
        for folder in self.folder.everyone():
            packs = JournalFile(folder.path / "packs.jsonl", Pack).read()
            whole = [pack for pack, _ in packs if self.archive.is_whole(self.archive_path(folder, pack.archive))]
            found[folder.label] = {name for pack in whole for name in pack.names}
        return found

    def _recover(self) -> None:
        """Finishes packs that a killed process has begun, and finds the staged samples."""
        # The names of an archive that has lost its end are generated again for another one.
        entries = {entry.name: entry for entry, _ in self.folder.journal.read()}
        staged = {path.stem: path for path in files_inside(inside(self.folder.path, STAGED)) if is_whole(path)}
        for pack, _ in self.packs.read():
            archive = self.archive_path(self.folder, pack.archive)
            if self.archive.is_whole(archive):
                for name in pack.names:
                    if name in staged:
                        staged.pop(name).unlink()
            elif all(name in staged and name in entries for name in pack.names):
                self._finish(pack.archive, [entries[name] for name in pack.names])
                for name in pack.names:
                    del staged[name]
            elif is_file(archive):
                archive.unlink()
        for name, path in staged.items():
            if name not in entries:  # written, but not in the journal
                path.unlink()
        self.waiting = {name: entry for name, entry in entries.items() if name in staged}

    def _finish(self, number: int, pack: Sequence[SampleEntry]) -> None:
        files = [self.folder.staged / entry.file for entry in pack]
        self.archive.write(self.archive_path(self.folder, number), pack, files, self.weights)
        for file in files:
            file.unlink()
