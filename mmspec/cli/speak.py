"""`mmspec speak`: texts become sound files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.audio import STDOUT, SUFFIXES, ImageRequest, make
from mmspec.cli.options import Device, Json, Model, Seed, Temperature, TopK, TopP, Window, read_recipe
from mmspec.cli.output_paths import plan
from mmspec.cli.pipelines import load_speech
from mmspec.errors import ArgumentError, PromptError


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
    voice_file: Annotated[
        Path | None, typer.Option(show_default=False, help="A sound file with a voice to speak with, where it can.")
    ] = None,
    voice_text: Annotated[str | None, typer.Option(show_default=False, help="What is said in the voice file.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(show_default="the model's", help="A name from `mmspec ls recipes`, with knobs: table:window=8."),
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
    if voice_text is not None and voice_file is None:
        raise ArgumentError("--voice-text goes with --voice-file")
    wanted = read_texts(texts)
    if output == STDOUT and (not stream or as_json):
        raise ArgumentError("-o/--output: - goes with --stream and without --json")
    paths = [STDOUT] * len(wanted) if output == STDOUT else plan(output, len(wanted), SUFFIXES)
    settings = {"voice": voice, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    pipe = load_speech(model, device, voice_file, voice_text)
    make(pipe, model, ImageRequest(wanted, paths, chosen, settings, seed, stream, as_json))


def read_texts(texts: list[str]) -> list[str]:
    """The texts to say; `-` stands for the lines of stdin that are not blank.

    Raises:
        PromptError: When stdin holds none.
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
