"""Archives that WebDataset reads: tar files in which a sample is a group of files that share a name."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from mmspec.bulk.folder import SampleEntry
from mmspec.files.folders import end_of, replacing_inside


def description(entry: SampleEntry, weights: str) -> dict[str, Any]:
    """What an archive says about a sample: how it was generated, and nothing that varies from run to run."""
    return {
        "prompt": entry.prompt, "seed": entry.seed, "id": entry.id, "settings": entry.settings, "recipe": entry.recipe,
        "tokens": entry.tokens, "length": entry.length, "notes": entry.notes, "weights": weights,
    }  # fmt: skip


class TarArchive:
    """A tar file with `NAME.png` or `NAME.wav`, `NAME.json` and `NAME.txt`, the prompt, of each sample.

    Times and owners are left out, so that the same samples make the same bytes.
    """

    suffix = ".tar"

    def is_whole(self, path: Path) -> bool:
        """Whether the file ends with the two empty blocks of a tar file."""
        return end_of(path, 1024) == bytes(1024)

    def write(self, path: Path, entries: Sequence[SampleEntry], files: Sequence[Path], weights: str) -> None:
        """Writes an archive of samples and their files atomically; it is on the disk when the method returns.

        Raises:
            OutputError: If it cannot be written.
        """
        with replacing_inside(path.parent, path.name) as partial, partial.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
                for entry, own in zip(entries, files, strict=True):
                    text = json.dumps(description(entry, weights), sort_keys=True).encode()
                    for name, data in (
                        (entry.file, own.read_bytes()),
                        (f"{entry.name}.json", text),
                        (f"{entry.name}.txt", entry.prompt.encode()),
                    ):
                        header = tarfile.TarInfo(name)
                        header.size = len(data)
                        archive.addfile(header, BytesIO(data))
            file.flush()
            os.fsync(file.fileno())
