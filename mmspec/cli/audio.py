"""Audio files from texts: the part that `mmspec speak` and `mmspec music` share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.output_paths import OPTION, plan
from mmspec.cli.progress import audio_bar
from mmspec.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mmspec.decoding.step import OnStep
    from mmspec.recipes import Recipe

SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3")  # of `mmspec.audio.wave.FORMATS`, without its imports
STDOUT = Path("-")

Output = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        help="A .wav, .flac, .ogg, .opus or .mp3 file (numbered when there are several), or a folder; with --stream, - "
        "for 16-bit samples on stdout.",
    ),
]
Format = Annotated[
    str | None, typer.Option(show_default="wav", help="The format of files in a folder: wav, flac, ogg, opus or mp3.")
]
SamplingRate = Annotated[
    int | None, typer.Option(min=1000, show_default="the model's", help="Samples per second of the audio.")
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, show_default="the number of texts, at least 8", help="Parts of texts at a time.")
]


@dataclass(frozen=True)
class AudioRequest:
    """Texts, and the files that their audio is written to.

    Attributes:
        texts: One per file.
        paths: The file of each text, or `STDOUT`.
        recipe: None stands for the model's default.
        settings: Other arguments of the pipeline.
        seed: Text i uses `seed + i`.
        stream: Whether audio is written while it is decoded.
        as_json: Whether to print one JSON object and no progress.
        batch_size: Parts of texts to decode at a time; None is the pipeline's default.
    """

    texts: Sequence[str]
    paths: Sequence[Path]
    recipe: Recipe | None
    settings: dict[str, Any]
    seed: int
    stream: bool
    as_json: bool
    batch_size: int | None = None

    def sampling_rate(self, pipe: Any) -> int:
        """Samples per second of the audio."""
        return int(self.settings.get("sampling_rate") or pipe.sampling_rate)


def check_output(output: Path, stream: bool, as_json: bool) -> None:
    """Checks `-o -` before any work.

    Raises:
        ArgumentError: If it is not possible with these options, or stdout is closed.
    """
    if output != STDOUT:
        return
    if not stream or as_json:
        raise ArgumentError(f"{OPTION}: - requires --stream and excludes --json")
    if sys.stdout is None:
        raise ArgumentError(f"{OPTION}: - is not possible: stdout is closed")


def plan_files(output: Path, count: int, format: str | None, sampling_rate: int | None) -> list[Path]:
    """The path of each of `count` files.

    Raises:
        ArgumentError: For a path that cannot be written, an unknown format, and a format that is not that of the file,
            that libsndfile cannot write, or that does not have the sampling rate.
    """
    from mmspec.audio.wave import check_format

    suffixes: Sequence[str] = SUFFIXES
    if format is not None:
        suffix = f".{format.lower().removeprefix('.')}"
        if suffix not in SUFFIXES:
            raise ArgumentError(f"--format {format!r} is not allowed; use one of {', '.join(s[1:] for s in SUFFIXES)}")
        suffixes = [suffix]
    if output == STDOUT:
        if format is not None:
            raise ArgumentError(f"--format is not possible with {OPTION} -, which writes 16-bit samples")
        return [STDOUT] * count
    paths = plan(output, count, suffixes)
    check_format(paths[0], sampling_rate)
    return paths


def generate_files(pipe: Any, model: str, request: AudioRequest) -> None:
    """Generates audio with a `mmspec.audio.pipeline.SpeechPipeline`, writes the files and prints their paths."""
    from mmspec.audio.wave import check_format, write_audio

    codec, rate, start = pipe.adapter.codec, request.sampling_rate(pipe), time.perf_counter()
    if request.paths[0] == STDOUT:
        kind = "mono" if codec.channels == 1 else "stereo"
        print(f"mmspec: 16-bit little-endian samples, {rate} Hz, {kind}: aplay -r {rate} -f S16_LE", file=sys.stderr)
    else:
        check_format(request.paths[0], rate)
    record: dict[str, Any] = {"outputs": [str(path) for path in request.paths]}
    record |= {"recipe": str(request.recipe or pipe.config["recipe"]), "seed": request.seed, "model": model}
    record |= {"sampling_rate": rate}
    with audio_bar(request.as_json, codec.hop / codec.sampling_rate) as on_step:
        if request.stream:
            first, lengths, notes, truncated = _stream(pipe, request, on_step)
            record |= {"first_chunk_seconds": first, "notes": notes, "truncated": truncated}
        else:
            options = {"seed": request.seed, "recipe": request.recipe, "on_step": on_step, **request.settings}
            outputs = pipe(list(request.texts), batch_size=request.batch_size, **options)
            lengths = [output.seconds for output in outputs]
            for path, output in zip(request.paths, outputs, strict=True):
                write_audio(output.audio, rate, path)
                if not request.as_json:
                    _print_notes(output.notes)
                    print(path)
            record |= {"notes": [output.notes for output in outputs], "stats": outputs.stats.to_dict()}
            record |= {"truncated": [output.truncated for output in outputs]}
    seconds, length = time.perf_counter() - start, sum(lengths)
    if request.as_json:
        print(json.dumps(record | {"seconds": seconds, "seconds_of_sound": lengths}))
    elif sys.stderr.isatty():
        print(
            f"{length:.1f} s of audio at {rate} Hz in {seconds:.1f} s, {length / seconds:.1f}x real time",
            file=sys.stderr,
        )


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"mmspec: note: {note}", file=sys.stderr)


def _stream(
    pipe: Any, request: AudioRequest, on_step: OnStep | None
) -> tuple[float, list[float], list[list[str]], list[bool]]:
    """Writes texts while they are decoded; returns seconds to the first chunk, and of each text, notes, truncation."""
    from mmspec.audio.wave import write_raw, write_stream

    rate, channels, start, first = request.sampling_rate(pipe), pipe.adapter.codec.channels, time.perf_counter(), 0.0

    def timed(chunks: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
        nonlocal first
        for chunk in chunks:
            first = first or time.perf_counter() - start
            yield chunk

    # All texts are read before any is decoded, so that an invalid one stops the command before it writes a file.
    notes = [pipe.read(text, request.settings.get("voice")).notes for text in request.texts]
    lengths, truncated = [], []
    for i, (text, path) in enumerate(zip(request.texts, request.paths, strict=True)):
        if not request.as_json:
            _print_notes(notes[i])
        options = {"seed": request.seed + i, "recipe": request.recipe, "on_step": on_step, **request.settings}
        audio = pipe.stream(text, **options)
        chunks = timed(audio)
        if path == STDOUT:
            samples = write_raw(chunks, sys.stdout.buffer)
        else:
            samples = write_stream(chunks, rate, path, channels)
            if not request.as_json:
                print(path)
        if not request.as_json:
            _print_notes(audio.notes[len(notes[i]) :])
        lengths.append(samples / rate)
        notes[i] = audio.notes
        truncated.append(audio.truncated)
    return first, lengths, notes, truncated
