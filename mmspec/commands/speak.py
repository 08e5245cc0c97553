"""`mmspec speak`: texts become sound files."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.commands.options import Device, Json, Model, Seed, Temperature, TopK, TopP, Window, read_recipe
from mmspec.commands.outputs import plan
from mmspec.commands.pipes import load_speaker
from mmspec.commands.progress import sound_bar
from mmspec.errors import ArgumentError, PromptError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mmspec.loop import OnStep

SUFFIXES = (".wav", ".flac")
STDOUT = Path("-")


def speak(
    texts: Annotated[
        list[str], typer.Argument(metavar="TEXT...", show_default=False, help="What to say; - reads lines from stdin.")
    ],
    model: Model = "spoken",
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="A .wav or .flac file (numbered when there are several), or a folder; with --stream, - for 16-bit "
            "samples on stdout.",
        ),
    ] = Path("out.wav"),
    voice: Annotated[str | None, typer.Option(show_default="the model's", help="One of the model's voices.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(show_default="the model's", help="A name from `mmspec ls recipes`, with knobs: table:window=6."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Write sound as soon as it is there.")] = False,
    seed: Seed = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    window: Window = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Say texts. Prints the path of each file."""
    chosen = None if recipe is None else read_recipe(recipe, window)
    if window is not None and chosen is None:
        raise ArgumentError("--window goes with --recipe")
    wanted = read_texts(texts)
    if output == STDOUT and (not stream or as_json):
        raise ArgumentError("-o/--output: - goes with --stream and without --json")
    paths = [STDOUT] * len(wanted) if output == STDOUT else plan(output, len(wanted), SUFFIXES)

    from mmspec.audio.wave import write_sound

    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    pipe = load_speaker(model, device)
    codec = pipe.speaker.codec
    settings: dict[str, Any] = {"voice": voice, "recipe": chosen, **sampling}
    record: dict[str, Any] = {"outputs": [str(path) for path in paths], "recipe": str(chosen or pipe.config["recipe"])}
    record |= {"seed": seed, "model": model, "sampling_rate": codec.sampling_rate}
    start = time.perf_counter()
    with sound_bar(as_json, codec.hop / codec.sampling_rate) as on_step:
        if stream:
            first, lengths = _stream(pipe, wanted, paths, seed, settings, on_step, quiet=as_json)
            record |= {"first_chunk_seconds": first}
        else:
            sounds = pipe(wanted, seed=seed, on_step=on_step, **settings)
            lengths = [sound.seconds for sound in sounds]
            for path, sound in zip(paths, sounds, strict=True):
                write_sound(sound.audio, codec.sampling_rate, path)
                _note(sound.notes, as_json)
                if not as_json:
                    print(path)
            record |= {"notes": [sound.notes for sound in sounds], "stats": sounds.stats.to_dict()}
    seconds = time.perf_counter() - start
    if as_json:
        print(json.dumps(record | {"seconds": seconds, "seconds_of_sound": lengths}))
    elif sys.stderr.isatty():
        pace = f"{sum(lengths) / seconds:.1f} times as fast as it sounds"
        print(f"{sum(lengths):.1f} s of sound in {seconds:.1f} s, {pace}", file=sys.stderr)


def read_texts(texts: list[str]) -> list[str]:
    """The texts to say; `-` stands for the lines of stdin that are not blank.

    Raises `PromptError` when stdin holds none.
    """
    found: list[str] = []
    for text in texts:
        if text != "-":
            found.append(text)
            continue
        lines = [line.strip() for line in sys.stdin if line.strip()]
        if not lines:
            raise PromptError("stdin holds no line to say")
        found += lines
    return found


def _stream(
    pipe: Any,
    texts: list[str],
    paths: list[Path],
    seed: int,
    settings: dict[str, Any],
    on_step: OnStep | None,
    quiet: bool,
) -> tuple[float, list[float]]:
    """Writes each text as it comes; returns the seconds until the first sound, and how long each sounds."""
    from mmspec.audio.wave import write_raw, write_stream

    codec, start, first = pipe.speaker.codec, time.perf_counter(), 0.0

    def timed(chunks: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
        nonlocal first
        for chunk in chunks:
            first = first or time.perf_counter() - start
            yield chunk

    lengths = []
    for i, (text, path) in enumerate(zip(texts, paths, strict=True)):
        chunks = timed(pipe.stream(text, seed=seed + i, on_step=on_step, **settings))
        if path == STDOUT:
            samples = write_raw(chunks, sys.stdout.buffer)
        else:
            samples = write_stream(chunks, codec.sampling_rate, path, codec.channels)
            if not quiet:
                print(path)
        lengths.append(samples / codec.sampling_rate)
    return first, lengths


def _note(notes: list[str], quiet: bool) -> None:
    if not quiet:
        for note in notes:
            print(f"mmspec: note: {note}", file=sys.stderr)
