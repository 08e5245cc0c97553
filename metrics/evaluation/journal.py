"""The samples of an evaluation as they are finished, one JSON line each, safe against being killed at any time."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mmspec.errors import ArgumentError

Key = tuple[str, str, int]  # recipe, prompt, seed


@dataclass(frozen=True)
class Sample:
    """One image or recording and what it cost; see `mmspec.decoding.stats.Stats`.

    Attributes:
        seed: As asked for.
        drawn: The seed that it was drawn with, which depends on the prompt too.
        file: Its path inside the results folder.
        seconds: Its share of the wall-clock of its call, from prompt to file's content.
        parts: Of the decoding.
        latency: Of the whole call.
        first: Until its first tokens were there; of sound that streams, until its first text, streamed alone, gave its
            first chunk.
        calls: Target calls it took part in.
        gains: What each of them gave it, where the pipeline tells.
        grid: Tokens per row of the image; None where its tokens are no grid, as those of sound.
        length: Seconds of sound; None for an image.
    """

    recipe: str
    prompt: str
    seed: int
    drawn: int
    file: str
    seconds: float
    latency: float
    first: float
    parts: dict[str, float]
    tokens: int
    calls: float
    gains: list[int]
    peak_memory: int
    tv_bound: float
    entropy: float | None
    nll: float | None
    acceptance: list[float | None]
    grid: int | None
    length: float | None

    @property
    def key(self) -> Key:
        return self.recipe, self.prompt, self.seed


def sample_path(recipe: str, prompt: str, seed: int, suffix: str = ".png") -> Path:
    """Where the file of a sample lies inside the results folder: names that no file system minds."""
    readable = "".join(c if c.isalnum() or c in "+.-" else "_" for c in recipe)
    names = [hashlib.sha256(text.encode()).hexdigest()[:8] for text in (recipe, prompt)]
    return Path("samples") / f"{readable}-{names[0]}" / f"{names[1]}-{seed}{suffix}"


class Journal:
    """The lines of one process, and what all processes, of earlier runs too, have finished."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.path = folder / f"samples-{rank}.jsonl"

    def read(self) -> dict[Key, Sample]:
        """Finished samples whose files are there. A line that was cut off is none.

        Raises:
            ArgumentError: For a whole line that is no sample.
        """
        found: dict[Key, Sample] = {}
        for path in sorted(self.folder.glob("samples-*.jsonl")):
            for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
                try:
                    values: dict[str, Any] = json.loads(line)
                    sample = Sample(**values)
                except (ValueError, TypeError) as error:
                    raise ArgumentError(f"'{path}' line {number} is no sample: {error}; delete the line") from error
                if (self.folder / sample.file).is_file():
                    found[sample.key] = sample
        return found

    def append(self, samples: list[Sample]) -> None:
        """Adds a line for each and waits until they are on the disk.

        Raises:
            ArgumentError: When the system refuses.
        """
        lines = b"".join(json.dumps(asdict(sample)).encode() + b"\n" for sample in samples)
        try:
            with self.path.open("ab+") as file:
                file.truncate(self._whole(file.tell()))
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ArgumentError(f"cannot write '{self.path}': {error.strerror or error}") from error

    def _whole(self, size: int) -> int:
        """Bytes up to the end of the last whole line: a process that was killed may have left a part of one after."""
        with self.path.open("rb") as file:
            end = size
            while end > 0:
                start = max(0, end - 65536)
                file.seek(start)
                cut = file.read(end - start).rfind(b"\n")
                if cut >= 0:
                    return start + cut + 1
                end = start
        return 0
