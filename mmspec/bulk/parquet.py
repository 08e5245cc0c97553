"""Archives in the Parquet format, which `datasets.load_dataset` shows as images or audio."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmspec.bulk.folder import SampleEntry
from mmspec.environment.importing import install_extra
from mmspec.errors import ArgumentError
from mmspec.files.folders import end_of, replacing_inside

ROWS = 100  # of a row group, which is as much as memory holds at a time


class ParquetArchive:
    """A Parquet file with a row per sample: its file as {bytes, path}, and how it was generated.

    Raises:
        ArgumentError: If pyarrow is not installed.
    """

    suffix = ".parquet"

    def __init__(self) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise ArgumentError(
                f"--format parquet needs pyarrow, which is not installed; {install_extra('parquet')}"
            ) from None

    def is_whole(self, path: Path) -> bool:
        """Whether the file ends with the mark of a Parquet file."""
        return end_of(path, 4) == b"PAR1"

    def write(self, path: Path, entries: Sequence[SampleEntry], files: Sequence[Path], weights: str) -> None:
        """Writes an archive of samples and their files atomically; it is on the disk when the method returns.

        Raises:
            OutputError: If it cannot be written.
        """
        import pyarrow
        import pyarrow.parquet

        kind = "image" if entries[0].length is None else "audio"
        schema = _schema(kind, weights)
        with replacing_inside(path.parent, path.name) as partial, partial.open("wb") as file:
            with pyarrow.parquet.ParquetWriter(file, schema) as writer:
                for first in range(0, len(entries), ROWS):
                    chosen = slice(first, first + ROWS)
                    rows = [_row(kind, *each) for each in zip(entries[chosen], files[chosen], strict=True)]
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            file.flush()
            os.fsync(file.fileno())


def _row(kind: str, entry: SampleEntry, file: Path) -> dict[str, Any]:
    return {
        "name": entry.name, kind: {"bytes": file.read_bytes(), "path": entry.file}, "prompt": entry.prompt,
        "seed": entry.seed, "id": entry.id, "settings": json.dumps(entry.settings, sort_keys=True),
        "recipe": entry.recipe, "tokens": entry.tokens, "notes": "; ".join(entry.notes),
    }  # fmt: skip


def _schema(kind: str, weights: str) -> Any:
    """The types of the columns; a note tells `datasets` that a column holds images or audio."""
    import pyarrow

    texts, numbers = ("name", "prompt", "id", "settings", "recipe", "notes"), ("seed", "tokens")
    order = ("name", kind, "prompt", "seed", "id", "settings", "recipe", "tokens", "notes")
    medium = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    types = {**dict.fromkeys(texts, pyarrow.string()), **dict.fromkeys(numbers, pyarrow.int64()), kind: medium}
    features = {
        name: {"_type": kind.capitalize()} if name == kind else {"dtype": str(types[name]), "_type": "Value"}
        for name in order
    }
    notes = {"huggingface": json.dumps({"info": {"features": features}}), "mmspec_weights": weights}
    return pyarrow.schema([(name, types[name]) for name in order], metadata=notes)
