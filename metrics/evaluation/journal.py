"""The journal of an evaluation: one JSON line per finished sample, safe against being killed at any time."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mmspec.errors import ArgumentError
from mmspec.metrics.values import Count, Gain, Quantity, Real, Share, Width, first_error

Key = tuple[str, str, int]  # recipe, prompt, seed


@dataclass(frozen=True)
class SampleRecord:
    """One image or recording and what it cost; for statistics see `mmspec.decoding.stats.Stats`.

    Attributes:
        recipe: Its name with its knobs.
        prompt: The text.
        seed: As the user named it.
        drawn: The seed given to the pipeline, which depends on the prompt too; see `generation.pipeline_seed`.
        file: Its path inside the results folder.
        seconds: Its share of the wall-clock time of its call, from the prompt to the content of the file.
        latency: Seconds of the whole call.
        first: Seconds of the call until its first tokens; for audio that streams, until the first chunk of the call's
            first text, streamed alone.
        parts: Its share of the seconds of the parts of decoding.
        tokens: Emitted tokens.
        calls: Target calls it took part in.
        gains: Tokens that each of those calls emitted for it; empty if the pipeline does not report them.
        peak_memory: Bytes.
        tv_bound: The bound that a relaxed rule reports, per token.
        entropy: Bits per token; None if not measured.
        nll: Bits per token; None if not measured.
        acceptance: Acceptance rate by slot of the window, of the whole call.
        grid: Tokens per row of the image; None if its tokens form no grid, such as those of audio.
        length: Seconds of audio; None for an image.
    """

    recipe: str
    prompt: str
    seed: Count
    drawn: Count
    file: str
    seconds: Quantity
    latency: Quantity
    first: Quantity
    parts: dict[str, Quantity]
    tokens: Count
    calls: Quantity
    gains: list[Gain]
    peak_memory: Count
    tv_bound: Quantity
    entropy: Real | None
    nll: Real | None
    acceptance: list[Share | None]
    grid: Width | None
    length: Quantity | None

    @property
    def key(self) -> Key:
        return self.recipe, self.prompt, self.seed


def sample_path(recipe: str, prompt: str, seed: int, suffix: str = ".png") -> Path:
    """The path of a sample's file inside the results folder, in names that every file system accepts."""
    readable = "".join(c if c.isalnum() or c in "+.-" else "_" for c in recipe[:100])
    names = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8] for text in (recipe, prompt)]
    return Path("samples") / f"{readable}-{names[0]}" / f"{names[1]}-{seed}{suffix}"


SUFFIXES = (".png", ".wav")


def find_sample(folder: Path, recipe: str, prompt: str, seed: int) -> Path | None:
    """The file of a sample inside a results folder; None if it is missing, or a link leads out of the folder.

    The name is computed, never read from a file: results folders of others cannot point anywhere else.
    """
    for suffix in SUFFIXES:
        path = folder / sample_path(recipe, prompt, seed, suffix)
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return path
    return None


class Journal:
    """The finished samples of a results folder. Each process writes its own file; all are read.

    Args:
        folder: The results folder.
        rank: Of this process.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.path = folder / f"samples-{rank}.jsonl"

    def read(self) -> dict[Key, SampleRecord]:
        """The finished samples of all processes and earlier runs whose files exist; a line that was cut off is ignored.

        Raises:
            ArgumentError: If a complete line does not hold a sample, or names a file that is not the sample's.
        """
        found: dict[Key, SampleRecord] = {}
        for path in filter(Path.is_file, sorted(self.folder.glob("samples-*.jsonl"))):
            for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
                sample = _read_sample(line, f"'{path}' line {number}")
                if find_sample(self.folder, *sample.key) is not None:
                    found[sample.key] = sample
        return found

    def append(self, samples: list[SampleRecord]) -> None:
        """Appends a line per sample and waits until they are on the disk.

        Raises:
            ArgumentError: If the file cannot be written.
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
        """Bytes up to the end of the last whole line; a killed process may have left part of a line after it."""
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


@cache
def _sample() -> TypeAdapter[SampleRecord]:
    return TypeAdapter(SampleRecord)


def _read_sample(line: bytes, name: str) -> SampleRecord:
    """The sample in a line, which must have the types of `SampleRecord` and name that sample's own file.

    Raises:
        ArgumentError: If it does not.
    """
    try:
        sample = _sample().validate_json(line, strict=True)
    except ValidationError as error:
        raise ArgumentError(f"{name} is not a sample record: {first_error(error)}; delete the line") from None
    own = [sample_path(*sample.key, suffix).as_posix() for suffix in SUFFIXES]
    if sample.file not in own:
        raise ArgumentError(
            f"{name} is not a sample record: its file {sample.file!r} must be {own[0]!r}; delete the line"
        )
    return sample
