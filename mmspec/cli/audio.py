"""Audio files from texts: the part that `mmspec speak` and `mmspec music` share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.progress import audio_bar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mmspec.decoding.loop import OnStep
    from mmspec.recipes import Recipe

SUFFIXES = (".wav", ".flac")
STDOUT = Path("-")


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
    """

    texts: Sequence[str]
    paths: Sequence[Path]
    recipe: Recipe | None
    settings: dict[str, Any]
    seed: int
    stream: bool
    as_json: bool


def generate_files(pipe: Any, model: str, request: AudioRequest) -> None:
    """Generates audio with a `mmspec.audio.pipeline.SpeechPipeline`, writes the files and prints their paths."""
    from mmspec.audio.wave import write_audio

    codec, start = pipe.adapter.codec, time.perf_counter()
    record: dict[str, Any] = {"outputs": [str(path) for path in request.paths]}
    record |= {"recipe": str(request.recipe or pipe.config["recipe"]), "seed": request.seed, "model": model}
    record |= {"sampling_rate": codec.sampling_rate}
    with audio_bar(request.as_json, codec.hop / codec.sampling_rate) as on_step:
        if request.stream:
            first, lengths, notes = _stream(pipe, request, on_step)
            record |= {"first_chunk_seconds": first, "notes": notes}
        else:
            options = {"seed": request.seed, "recipe": request.recipe, "on_step": on_step, **request.settings}
            outputs = pipe(list(request.texts), **options)
            lengths = [output.seconds for output in outputs]
            for path, output in zip(request.paths, outputs, strict=True):
                write_audio(output.audio, codec.sampling_rate, path)
                if not request.as_json:
                    _print_notes(output.notes)
                    print(path)
            record |= {"notes": [output.notes for output in outputs], "stats": outputs.stats.to_dict()}
    seconds, length = time.perf_counter() - start, sum(lengths)
    if request.as_json:
        print(json.dumps(record | {"seconds": seconds, "seconds_of_sound": lengths}))
    elif sys.stderr.isatty():
        print(f"{length:.1f} s of audio in {seconds:.1f} s, {length / seconds:.1f}x real time", file=sys.stderr)


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"mmspec: note: {note}", file=sys.stderr)


def _stream(pipe: Any, request: AudioRequest, on_step: OnStep | None) -> tuple[float, list[float], list[list[str]]]:
    """Writes each text while it is decoded.

    Returns:
        Seconds until the first chunk of audio, and the seconds of audio and the notes of each text.
    """
    from mmspec.audio.wave import write_raw, write_stream

    codec, start, first = pipe.adapter.codec, time.perf_counter(), 0.0

    def timed(chunks: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
        nonlocal first
        for chunk in chunks:
            first = first or time.perf_counter() - start
            yield chunk

    # All texts are read before any is decoded, so that an invalid one stops the command before it writes a file.
    notes = [pipe.read(text, request.settings.get("voice")).notes for text in request.texts]
    lengths = []
    for i, (text, path) in enumerate(zip(request.texts, request.paths, strict=True)):
        if not request.as_json:
            _print_notes(notes[i])
        options = {"seed": request.seed + i, "recipe": request.recipe, "on_step": on_step, **request.settings}
        chunks = timed(pipe.stream(text, **options))
        if path == STDOUT:
            samples = write_raw(chunks, sys.stdout.buffer)
        else:
            samples = write_stream(chunks, codec.sampling_rate, path, codec.channels)
            if not request.as_json:
                print(path)
        lengths.append(samples / codec.sampling_rate)
    return first, lengths, notes
