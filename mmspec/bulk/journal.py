"""Journals: one JSON line per finished sample, safe against being killed at any time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from mmspec.errors import ArgumentError, OutputError
from mmspec.files.documents import first_error
from mmspec.files.folders import append_inside, is_file, open_inside
from mmspec.files.inputs import bounded_lines

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    RecordT = TypeVar("RecordT", bound=DataclassInstance)
else:
    RecordT = TypeVar("RecordT")

BLOCK = 65536  # bytes that are read at a time, to find the end of the last whole line


class JournalFile(Generic[RecordT]):
    """A file of JSON lines that one process appends to.

    Args:
        path: The file, which need not exist; its folder must, before the first line is appended.
        record: The data class of a line.
    """

    def __init__(self, path: Path, record: type[RecordT]) -> None:
        self.path = path
        self.record = record

    def read(self) -> Iterator[tuple[RecordT, str]]:
        """Yields each record with its place, such as `'out/samples-0.jsonl' line 3`; a line cut off at the end is left.

        Raises:
            ArgumentError: If a whole line does not hold such a record.
        """
        if not is_file(self.path):
            return
        with open_inside(self.path) as file:
            for number, line in enumerate(bounded_lines(file, f"'{self.path}'"), 1):
                if line.endswith(b"\n"):
                    place = f"'{self.path}' line {number}"
                    yield self._parse(line[:-1], place), place

    def count(self) -> int:
        """Whole lines, which are not looked into."""
        if not is_file(self.path):
            return 0
        with open_inside(self.path) as file:
            return sum(block.count(b"\n") for block in iter(partial(file.read, BLOCK), b""))

    def modified(self) -> float | None:
        """When the file was last written, in seconds; None if there is none."""
        return self.path.lstat().st_mtime if is_file(self.path) else None

    def append(self, records: Sequence[RecordT]) -> None:
        """Appends a line per record and waits until they are on the disk.

        A line that an earlier process left unfinished is removed first.

        Raises:
            OutputError: If the file cannot be written.
        """
        lines = b"".join(json.dumps(asdict(record)).encode() + b"\n" for record in records)
        try:
            with append_inside(self.path) as file:
                file.truncate(self._whole(file.tell()))
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"cannot write '{self.path}': {error.strerror or error}") from error

    def _parse(self, line: bytes, place: str) -> RecordT:
        try:
            found: RecordT = _adapter(self.record).validate_json(line, strict=True)
        except ValidationError as error:
            raise ArgumentError(f"{place} is not a sample record: {first_error(error)}; delete the line") from None
        return found

    def _whole(self, size: int) -> int:
        """Bytes up to the end of the last whole line."""
        with open_inside(self.path) as file:
            end = size
            while end > 0:
                start = max(0, end - BLOCK)
                file.seek(start)
                cut = file.read(end - start).rfind(b"\n")
                if cut >= 0:
                    return start + cut + 1
                end = start
        return 0


@cache
def _adapter(record: Any) -> TypeAdapter[Any]:
    return TypeAdapter(record)
