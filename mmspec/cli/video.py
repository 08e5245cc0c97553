"""`mmspec video`: videos that continue frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.model_options import Config, DType, Weights, read_config
from mmspec.cli.options import Device, Json, MinP, Seed, Temperature, TopK, TopP, TypicalP, Window, given, read_recipe
from mmspec.cli.output_paths import plan, read_output
from mmspec.cli.pipelines import load_generator
from mmspec.cli.progress import token_bar
from mmspec.errors import ArgumentError
from mmspec.recipes import configured_recipe


def video(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT",
            show_default=False,
            help="What each video continues: an image, a video file, or a folder of frames.",
        ),
    ],
    model: Annotated[
        str, typer.Option("-m", "--model", show_default=False, help="A checkpoint, a saved pipeline or a Hub id.")
    ],
    tokenizer: Annotated[
        str | None, typer.Option(show_default=False, help="The folder or Hub id of the video tokenizer.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(show_default=False, help="What the videos show, for models that read a text.")
    ] = None,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Videos per input.")] = 1,
    input_frames: Annotated[
        int | None,
        typer.Option(show_default="9 where all inputs have as many", help="Continue the last 1 or 9 frames."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            parser=read_output,
            metavar="PATH",
            help="A .webp, .gif or .mp4 file (numbered when there are several), or a folder.",
        ),
    ] = Path("out.webp"),
    fps: Annotated[float, typer.Option(min=1, max=240, help="Frames per second of the file.")] = 25,
    recipe: Annotated[
        str | None,
        typer.Option(show_default="the model's", help="A name from `mmspec ls recipes`, with knobs: scd:window=32."),
    ] = None,
    seed: Seed = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    typical_p: TypicalP = None,
    window: Window = None,
    config: Config = None,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Continue frames to videos, and print the path of each."""
    named, options = None if recipe is None else read_recipe(recipe, window), read_config(config)
    paths = plan(output, len(inputs) * number, (".webp", ".gif", ".mp4"))

    from mmspec.vision.cosmos_ar.frames import CONTEXTS
    from mmspec.vision.video_files import check_writable, last_frames, write_video

    if input_frames is not None and input_frames not in CONTEXTS:
        raise ArgumentError(f"--input-frames {input_frames} is not allowed; use 1 or 9")
    for path in paths:
        check_writable(path, fps)
    most = max(CONTEXTS) if input_frames is None else input_frames
    frames = [last_frames(path, most) for path in inputs]
    for path, found in zip(inputs, frames, strict=True):
        if input_frames is not None and len(found) < input_frames:
            raise ArgumentError(f"--input-frames {input_frames} is not possible: '{path}' has {len(found)}")
    pipe = load_generator(model, device, None, tokenizer, options, dtype)

    from mmspec.vision.cosmos_ar.pipeline import CosmosPipeline

    if not isinstance(pipe, CosmosPipeline):
        raise ArgumentError(f"model {model!r} does not generate videos; see `mmspec image` and `mmspec speak`")
    sampling = given(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p)
    chosen = named or read_recipe(configured_recipe(pipe), window)
    with token_bar(quiet=as_json) as on_step:
        out = pipe(
            prompt,
            video=frames,
            num_input_frames=input_frames,
            recipe=chosen,
            seed=seed,
            **sampling,
            num_videos_per_prompt=number,
            on_step=on_step,
        )
    for path, generated in zip(paths, out.frames, strict=True):
        write_video(generated, path, fps)
        if not as_json:
            print(path)
    if as_json:
        record = {
            "outputs": [str(path) for path in paths],
            "recipe": str(chosen),
            "seed": seed,
            "model": model,
            "stats": out.stats.to_dict(),
        }
        print(json.dumps(record))
