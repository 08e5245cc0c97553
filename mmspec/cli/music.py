"""`mmspec music`: audio files from descriptions."""

from __future__ import annotations

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
from mmspec.cli.model_options import DType, Weights
from mmspec.cli.options import (
    Device,
    GuidanceScale,
    Json,
    MinP,
    Model,
    Seed,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    Window,
    given,
    read_recipe,
)
from mmspec.cli.pipelines import load_audio_pipeline
from mmspec.recipes import configured_recipe


def music(
    prompts: Annotated[
        list[str], typer.Argument(metavar="PROMPT", show_default=False, help="A description of the music.")
    ],
    model: Model = "facebook/musicgen-small",
    output: Output = Path("out.wav"),
    format: Format = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, show_default="the model's", help="The length of a piece.")
    ] = None,
    melody: Annotated[
        Path | None, typer.Option(show_default=False, help="An audio file with the melody to follow (musicgen-melody).")
    ] = None,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Pieces per prompt.")] = 1,
    recipe: Annotated[
        str | None,
        typer.Option(show_default="the model's", help="A name from `mmspec ls recipes`, with knobs: draft:window=5."),
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
    sampling_rate: SamplingRate = None,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Generate music from descriptions, and print the path of each file."""
    chosen = None if recipe is None else read_recipe(recipe, window)
    check_output(output, stream, as_json)
    paths = plan_files(output, len(prompts) * number, format, sampling_rate)
    wanted = [prompt for prompt in prompts for _ in range(number)]
    pipe = load_audio_pipeline(model, device, melody, dtype=dtype)
    pipe = pipe if seconds is None else pipe.with_duration(seconds)
    settings = given(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
        guidance_scale=guidance_scale, sampling_rate=sampling_rate,
    )  # fmt: skip
    if chosen is None and window is not None:
        chosen = read_recipe(configured_recipe(pipe), window)
    generate_files(pipe, model, AudioRequest(wanted, paths, chosen, settings, seed, stream, as_json, batch_size))
