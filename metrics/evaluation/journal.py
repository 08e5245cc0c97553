"""The journal of an evaluation: one JSON line per finished sample, safe against being killed at any time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from mmspec.bulk.journal import JournalFile
from mmspec.errors import ArgumentError
from mmspec.metrics.values import Count, Gain, Quantity, Real, Share, Width

Key = tuple[str, str, int]  # recipe, prompt, seed


@dataclass(frozen=True)
class SampleRecord:
    """One image or recording and what it cost; for statistics see `mmspec.decoding.stats.Stats`.

    Attributes:
        recipe: Its name with its knobs.
        prompt: The text.
        seed: As the user named it.
        drawn: The seed given to the pipeline, which depends on the prompt too: `mmspec.sampling.seeds.pipeline_seed`.
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
        notes: Remarks on it, such as that it was cut at its limit.
        window: Tokens of the widest window; 0 if unknown.
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
    notes: list[str] = field(default_factory=list)
    window: Count = 0

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
        rank: Of this process.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.own = JournalFile(folder / f"samples-{rank}.jsonl", SampleRecord)

    def read(self) -> dict[Key, SampleRecord]:
        """The finished samples of all processes and earlier runs whose files exist; a line that was cut off is ignored.

        Raises:
            ArgumentError: If a complete line does not hold a sample, or names a file that is not the sample's.
        """
        found: dict[Key, SampleRecord] = {}
        for path in sorted(self.folder.glob("samples-*.jsonl")):
            for sample, place in JournalFile(path, SampleRecord).read():
                own = [sample_path(*sample.key, suffix).as_posix() for suffix in SUFFIXES]
                if sample.file not in own:
                    raise ArgumentError(
                        f"{place} is not a sample record: its file {sample.file!r} must be {own[0]!r}; delete the line"
                    )
                if find_sample(self.folder, *sample.key) is not None:
                    found[sample.key] = sample
        return found

    def append(self, samples: list[SampleRecord]) -> None:
        """Appends a line per sample and waits until they are on the disk.

        Raises:
            OutputError: If the file cannot be written.
        """
        self.own.append(samples)
