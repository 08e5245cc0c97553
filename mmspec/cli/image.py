"""`mmspec image`: PNG files from prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.model_options import DType, Tokenizer, Weights
from mmspec.cli.options import (
    Device,
    Drafter,
    GuidanceScale,
    Height,
    Json,
    Model,
    NegativePrompt,
    Seed,
    Temperature,
    TopK,
    TopP,
    Width,
    Window,
    read_recipe,
)
from mmspec.cli.output_paths import OPTION, plan, read_output
from mmspec.cli.pipelines import load_image_generator
from mmspec.cli.progress import token_bar
from mmspec.errors import ArgumentError
from mmspec.files import STDOUT


def image(
    prompts: Annotated[
        list[str], typer.Argument(metavar="PROMPT...", show_default=False, help="What the images show.")
    ],
    model: Model = "shapes",
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Images per prompt.")] = 1,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            parser=read_output,
            metavar="PATH",
            help="A .png file (numbered when there are several), a folder, or - for one image on stdout.",
        ),
    ] = Path("out.png"),
    recipe: Annotated[str, typer.Option(help="A name from `mmspec ls recipes`, with knobs: scd:window=32.")] = "scd",
    seed: Seed = 0,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    guidance_scale: GuidanceScale = None,
    height: Height = None,
    width: Width = None,
    negative_prompt: NegativePrompt = None,
    window: Window = None,
    drafter: Drafter = None,
    tokenizer: Tokenizer = None,
    dtype: Weights = DType.auto,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Generate images from text, and print the path of each."""
    chosen = read_recipe(recipe, window)
    paths = plan(output, len(prompts) * number)
    if output == STDOUT and as_json:
        raise ArgumentError(f"{OPTION}: - excludes --json, which also writes to stdout")

    from mmspec.vision.png import write_png

    sampling: dict[str, Any] = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "guidance_scale": guidance_scale,
    }  # fmt: skip
    # Only some models have these; the others refuse the name.
    of_some = {"height": height, "width": width, "negative_prompt": negative_prompt}
    sampling |= {name: value for name, value in of_some.items() if value is not None}
    pipe = load_image_generator(model, device, drafter, tokenizer, dtype)
    with token_bar(quiet=as_json) as on_step:
        out = pipe(
            prompts,
            recipe=chosen,
            seed=seed,
            **sampling,
            num_images_per_prompt=number,
            on_step=on_step,
        )

    notes = {"recipe": str(chosen), "model": model}
    notes |= {name: str(value) for name, value in sampling.items() if value is not None}
    for i, (path, generated) in enumerate(zip(paths, out.images, strict=True)):
        write_png(generated, path, {"prompt": prompts[i // number], "seed": str(out.seeds[i]), **notes})
        if not as_json and path != STDOUT:
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
