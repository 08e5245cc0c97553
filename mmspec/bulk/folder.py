"""The folder of a bulk run, which processes share without talking to each other.

Each process writes into a folder of its own, `shards/00000-of-00004/`:

- `run.json`: what all samples of the output have in common,
- `samples.jsonl`: the journal, a line per finished sample,
- `start.json`: what its last run began with, for `mmspec generate --status`,
- `failed.jsonl`: the samples that the model refused in the last run,
- `packs.jsonl` and `staged/`: see `mmspec.bulk.packed`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mmspec.bulk.journal import JournalFile
from mmspec.bulk.media import write_durably
from mmspec.environment.distributed import Shard
from mmspec.errors import ArgumentError, MMSpecError, OutputError
from mmspec.files.documents import read_json
from mmspec.files.folders import inside, is_folder, make_folder
from mmspec.files.locks import FILE, locked

OPTION = "-o/--output"
SHARDS = "shards"
RUN = "run.json"
STAGED = "staged"
_LABEL = re.compile("([0-9]{5,6})-of-([0-9]{5,6})")  # a name with more processes is not mmspec's


@dataclass(frozen=True)
class RunIdentity:
    """What all samples of an output have in common.

    Attributes:
        model: A name, a folder or a Hub id.
        fingerprint: Of the weights; see `mmspec.files.fingerprint`.
        format: "files", "webdataset" or "parquet".
    """

    model: str
    fingerprint: str
    format: str


@dataclass(frozen=True)
class SampleEntry:
    """A line of the journal of a bulk run: a sample, and what it cost.

    Attributes:
        prompt: The text.
        seed: The seed that the pipeline was called with.
        id: The caller's name of the sample.
        settings: The other arguments of the call.
        recipe: Its name with its knobs.
        file: Its name: a path in the output, or inside the archive that contains the sample.
        tokens: Emitted tokens.
        calls: Target calls it took part in.
        seconds: Its share of the wall-clock time of its call.
        length: Seconds of audio; None for an image.
        notes: Remarks on it, such as that it was cut at its limit.
        window: Tokens of the widest window; 0 if unknown.
    """

    name: str
    prompt: str
    seed: int
    id: str | None
    settings: dict[str, Any]
    recipe: str
    file: str
    tokens: int
    calls: float
    seconds: float
    length: float | None
    notes: list[str] = field(default_factory=list)
    window: int = 0


@dataclass(frozen=True)
class FailedSample:
    """A sample that the model refused.

    Attributes:
        error: Why.
    """

    name: str
    prompt: str
    id: str | None
    error: str


@dataclass(frozen=True)
class RunStart:
    """What a run began with; its file is as old as the run.

    Attributes:
        samples: Samples of this process.
        before: Samples that were finished before, by any process.
        lines: Lines of its journal then.
    """

    samples: int
    before: int
    lines: int


class ShardFolder:
    """What one process keeps in an output.

    Args:
        output: The folder of the whole output.
        shard: The part of the samples that the process generates.
    """

    def __init__(self, output: Path, shard: Shard) -> None:
        self.output = output
        self.shard = shard
        self.label = f"{shard.index:05}-of-{shard.count:05}"
        self.path = output / SHARDS / self.label
        self.journal = JournalFile(self.path / "samples.jsonl", SampleEntry)
        self.failures = JournalFile(self.path / "failed.jsonl", FailedSample)
        self.start = JournalFile(self.path / "start.json", RunStart)

    @property
    def staged(self) -> Path:
        """Files of samples that are not in an archive yet."""
        return self.path / STAGED

    @property
    def latest(self) -> float:
        """When its last run began, in seconds; 0 for folders that do not tell."""
        return self.start.modified() or 0.0

    def note_start(self, start: RunStart) -> None:
        """Writes what a run begins with.

        Raises:
            OutputError: If the file cannot be written.
        """
        write_durably(json.dumps(asdict(start)).encode() + b"\n", self.start.path)

    def everyone(self) -> list[ShardFolder]:
        """The folders of all processes of this and earlier runs, this one's last."""
        found = []
        for path in sorted(inside(self.output, SHARDS).glob("*-of-*")):
            numbers = _LABEL.fullmatch(path.name)
            if is_folder(path) and numbers and path.name != self.label:
                shard = Shard(*map(int, numbers.groups()))
                found += [ShardFolder(self.output, shard)] if shard.index < shard.count else []
        return [*found, self]


def check_output(output: Path) -> None:
    """Checks that an output can be made, or holds one of a bulk run; writes nothing.

    Raises:
        ArgumentError: If it cannot.
    """
    try:
        found = {path.name for path in output.iterdir()} if output.exists() else set()
    except OSError as error:
        raise ArgumentError(f"{OPTION}: cannot write '{output}': {error.strerror or error}") from error
    if found and SHARDS not in found:
        raise ArgumentError(f"{OPTION}: '{output}' is not empty and holds no folder {SHARDS}/; name another folder")


@contextmanager
def open_shard(output: Path, shard: Shard, identity: RunIdentity) -> Iterator[ShardFolder]:
    """Yields the folder of this process, which it alone uses during the block.

    Raises:
        ArgumentError: If another process uses it, a running process divides the samples in another way, the output
            holds samples of other weights or in another format, or the folder cannot be written.
    """
    check_output(output)
    folder = ShardFolder(output, shard)
    try:
        output.mkdir(parents=True, exist_ok=True)
        make_folder(output, f"{SHARDS}/{folder.label}")
    except OSError as error:
        raise ArgumentError(f"{OPTION}: cannot write '{output}': {error.strerror or error}") from error
    with locked(folder.path, OPTION):
        new = not (folder.path / RUN).exists()
        try:
            _join(folder, identity)
            folder.failures.path.unlink(missing_ok=True)
            yield folder
        except OutputError:  # no refusal: what has been written is continued when there is room
            raise
        except MMSpecError:
            if new and not folder.journal.path.exists():
                _remove(folder)
            raise


def _join(folder: ShardFolder, identity: RunIdentity) -> None:
    """Writes what the samples of this process have in common, and compares it with the others'."""
    # Written first: of two processes that start at once with other weights, at least one sees the other's.
    _refuse_other(folder, identity)
    write_durably(json.dumps(asdict(identity)).encode() + b"\n", folder.path / RUN)
    for other in folder.everyone()[:-1]:
        _refuse_other(other, identity)
        if other.shard.count != folder.shard.count and is_locked(other.path):
            raise ArgumentError(
                f"{OPTION}: '{folder.output}' is in use by a run of {other.shard.count} shards, this is one of "
                f"{folder.shard.count}; wait until it ends, or name another folder"
            )


def _remove(folder: ShardFolder) -> None:
    """Removes the folder of a process that has refused its input, and those around it that are empty then."""
    shutil.rmtree(folder.path)
    with suppress(OSError):  # other processes' folders are there
        folder.path.parent.rmdir()
        folder.output.rmdir()


def _refuse_other(folder: ShardFolder, identity: RunIdentity) -> None:
    """Checks that the samples of a folder have weights and format in common with this run."""
    path = folder.path / RUN
    if not path.exists():
        return
    found = read_json(path, OPTION)
    try:
        before = RunIdentity(**found)
    except TypeError as error:
        raise ArgumentError(f"{OPTION}: '{path}' is not that of a bulk run: {error}") from None
    if before.format != identity.format:
        raise ArgumentError(
            f"{OPTION}: '{folder.output}' holds samples in the format {before.format}, not {identity.format}; name "
            "another folder"
        )
    if before.fingerprint != identity.fingerprint or (not identity.fingerprint and before.model != identity.model):
        raise ArgumentError(
            f"{OPTION}: '{folder.output}' holds samples of other weights ({before.model!r}, fingerprint "
            f"{before.fingerprint}, now {identity.fingerprint}); name another folder"
        )


def is_locked(folder: Path) -> bool:
    """Whether a process uses a shard's folder."""
    from filelock import FileLock, Timeout

    if not os.path.exists(folder / FILE):
        return False
    try:
        with FileLock(folder / FILE).acquire(blocking=False):
            return False
    except Timeout:
        return True
