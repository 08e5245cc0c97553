"""Texts to sound files, for commands that differ in what they read and offer."""

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
class ImageRequest:
    """What is to be made.

    Attributes:
        texts: One per sound.
        paths: Where each goes, or `STDOUT`.
        recipe: None is the model's own.
        settings: What else the pipeline is called with.
        seed: Text i uses `seed + i`.
        stream: Write sound as soon as it is there.
        as_json: Print one JSON object and no progress.
    """

    texts: Sequence[str]
    paths: Sequence[Path]
    recipe: Recipe | None
    settings: dict[str, Any]
    seed: int
    stream: bool
    as_json: bool


def make(pipe: Any, model: str, order: ImageRequest) -> None:
    """Makes the sounds by a `mmspec.audio.pipeline.SpeechPipeline` and says so on stdout."""
    from mmspec.audio.wave import write_audio

    codec, start = pipe.adapter.codec, time.perf_counter()
    record: dict[str, Any] = {"outputs": [str(path) for path in order.paths]}
    record |= {"recipe": str(order.recipe or pipe.config["recipe"]), "seed": order.seed, "model": model}
    record |= {"sampling_rate": codec.sampling_rate}
    with audio_bar(order.as_json, codec.hop / codec.sampling_rate) as on_step:
        if order.stream:
            first, lengths, notes = _stream(pipe, order, on_step)
            record |= {"first_chunk_seconds": first, "notes": notes}
        else:
            sounds = pipe(list(order.texts), seed=order.seed, recipe=order.recipe, on_step=on_step, **order.settings)
            lengths = [sound.seconds for sound in sounds]
            for path, sound in zip(order.paths, sounds, strict=True):
                write_audio(sound.audio, codec.sampling_rate, path)
                if not order.as_json:
                    _tell(sound.notes)
                    print(path)
            record |= {"notes": [sound.notes for sound in sounds], "stats": sounds.stats.to_dict()}
    seconds = time.perf_counter() - start
    if order.as_json:
        print(json.dumps(record | {"seconds": seconds, "seconds_of_sound": lengths}))
    elif sys.stderr.isatty():
        adaptive_window = f"{sum(lengths) / seconds:.1f} times as fast as it sounds"
        print(f"{sum(lengths):.1f} s of sound in {seconds:.1f} s, {adaptive_window}", file=sys.stderr)


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        print(f"mmspec: note: {note}", file=sys.stderr)


def _stream(pipe: Any, order: ImageRequest, on_step: OnStep | None) -> tuple[float, list[float], list[list[str]]]:
    """Writes each text as it comes; returns the seconds until the first sound, and of each its length and notes."""
    from mmspec.audio.wave import write_raw, write_stream

    codec, start, first = pipe.adapter.codec, time.perf_counter(), 0.0

    def timed(chunks: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
        nonlocal first
        for chunk in chunks:
            first = first or time.perf_counter() - start
            yield chunk

    # All texts are read before any is said, so that one that cannot be said stops the command at once.
    notes = [pipe.read(text, order.settings.get("voice")).notes for text in order.texts]
    lengths = []
    for i, (text, path) in enumerate(zip(order.texts, order.paths, strict=True)):
        if not order.as_json:
            _tell(notes[i])
        chunks = timed(pipe.stream(text, seed=order.seed + i, recipe=order.recipe, on_step=on_step, **order.settings))
        if path == STDOUT:
            samples = write_raw(chunks, sys.stdout.buffer)
        else:
            samples = write_stream(chunks, codec.sampling_rate, path, codec.channels)
            if not order.as_json:
                print(path)
        lengths.append(samples / codec.sampling_rate)
    return first, lengths, notes
