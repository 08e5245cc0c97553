"""`mmspec speak`: audio files from texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.audio import (
    AudioRequest,
    BatchSize,
    Format,
    Output,
    SamplingRate,
    check_output,
    generate_files,
    plan_files,
)
from mmspec.cli.model_options import Codec, Config, DraftModel, DType, Style, Weights, read_config
from mmspec.cli.options import (
    Device,
    Drafter,
    GuidanceScale,
    Json,
    MinP,
    Model,
    PreviousChunks,
    Seed,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    Window,
    given,
    read_recipe,
)
from mmspec.cli.pipelines import load_audio_pipeline, without_bars
from mmspec.errors import PromptError
from mmspec.media.text import lines_of
from mmspec.recipes import configured_recipe


def speak(
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT", show_default=False, help="The texts to speak; - reads lines from stdin."),
    ],
    model: Model = "spoken",
    output: Output = Path("out.wav"),
    format: Format = None,
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
    min_p: MinP = None,
    typical_p: TypicalP = None,
    guidance_scale: GuidanceScale = None,
    window: Window = None,
    batch_size: BatchSize = None,
    pause: Annotated[
        float, typer.Option(min=0, max=60, help="Seconds of silence after each sentence at which a text is split.")
    ] = 0.0,
    condition_on_previous_chunks: PreviousChunks = False,
    sampling_rate: SamplingRate = None,
    style: Style = None,
    codec: Codec = None,
    config: Config = None,
    draft_model: DraftModel = None,
    drafter: Drafter = None,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Generate speech from texts, and print the path of each file."""
    chosen = None if recipe is None else read_recipe(recipe, window)
    options = read_config(config, style=style, draft_model=draft_model)
    check_output(output, stream, as_json)
    wanted = read_texts(texts)
    paths = plan_files(output, len(wanted), format, sampling_rate)
    settings = given(
        voice=voice, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
        guidance_scale=guidance_scale, pause=pause, sampling_rate=sampling_rate,
        condition_on_previous_chunks=condition_on_previous_chunks or None,
    )  # fmt: skip
    pipe = without_bars(load_audio_pipeline(model, device, voice_file, voice_text, options, codec, dtype), drafter)
    if chosen is None and window is not None:
        chosen = read_recipe(configured_recipe(pipe), window)
    generate_files(pipe, model, AudioRequest(wanted, paths, chosen, settings, seed, stream, as_json, batch_size))


def read_texts(texts: list[str]) -> list[str]:
    """Replaces `-` by the lines of stdin that are not blank.

    Raises:
        PromptError: When stdin has no such line, is closed, or is not text in its encoding.
    """
    found: list[str] = []
    for text in texts:
        if text != "-":
            found.append(text)
            continue
        if sys.stdin is None:
            raise PromptError("stdin is closed; - reads one text per line from it")
        try:
            lines = [line for _, line in lines_of(sys.stdin)]
            "".join(lines).encode()  # some locales turn bytes that are no text into surrogates
        except UnicodeError:
            raise PromptError(f"stdin is not {sys.stdin.encoding} text; convert it") from None
        except ValueError:
            raise PromptError("stdin is closed; - reads one text per line from it") from None
        if not lines:
            raise PromptError("stdin has no text; - reads one text per line")
        found += lines
    return found
