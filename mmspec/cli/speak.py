"""`mmspec speak`: audio files from texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.audio import STDOUT, SUFFIXES, AudioRequest, generate_files
from mmspec.cli.options import Device, Json, Model, Seed, Temperature, TopK, TopP, Window, read_recipe
from mmspec.cli.output_paths import plan
from mmspec.cli.pipelines import load_audio_pipeline
from mmspec.errors import ArgumentError, PromptError


def speak(
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT...", show_default=False, help="The texts to speak; - reads lines from stdin."),
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
        Path | None,
        typer.Option(
            show_default=False, help="An audio file with the voice to speak with, for models that accept one."
        ),
    ] = None,
    voice_text: Annotated[
        str | None, typer.Option(show_default=False, help="The transcript of the voice file.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(show_default="the model's", help="A name from `mmspec ls recipes`, with knobs: table:window=8."),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Write audio while it is decoded.")] = False,
    seed: Seed = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    window: Window = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Generate speech from texts, and print the path of each file."""
    chosen = None if recipe is None else read_recipe(recipe, window)
    if window is not None and chosen is None:
        raise ArgumentError("--window requires --recipe")
    if voice_text is not None and voice_file is None:
        raise ArgumentError("--voice-text requires --voice-file")
    wanted = read_texts(texts)
    if output == STDOUT and (not stream or as_json):
        raise ArgumentError("-o/--output: - requires --stream and excludes --json")
    paths = [STDOUT] * len(wanted) if output == STDOUT else plan(output, len(wanted), SUFFIXES)
    settings = {"voice": voice, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    pipe = load_audio_pipeline(model, device, voice_file, voice_text)
    generate_files(pipe, model, AudioRequest(wanted, paths, chosen, settings, seed, stream, as_json))


def read_texts(texts: list[str]) -> list[str]:
    """Replaces `-` by the lines of stdin that are not blank.

    Raises:
        PromptError: When stdin has no such line.
    """
    found: list[str] = []
    for text in texts:
        if text != "-":
            found.append(text)
            continue
        lines = [line.strip() for line in sys.stdin if line.strip()]
        if not lines:
            raise PromptError("stdin has no text; - reads one text per line")
        found += lines
    return found
