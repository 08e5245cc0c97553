"""`mmspec image`: PNG files from prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mmspec.cli.model_options import DType, Tokenizer, Weights
from mmspec.cli.options import (
    Device,
    Drafter,
    GuidanceScale,
    Height,
    Json,
    MinP,
    Model,
    NegativePrompt,
    Seed,
    Temperature,
    TopK,
    TopP,
    TypicalP,
    Width,
    Window,
    given,
    read_recipe,
)
from mmspec.cli.output_paths import OPTION, plan, read_output
from mmspec.cli.pipelines import load_image_generator
from mmspec.cli.progress import token_bar
from mmspec.errors import ArgumentError
from mmspec.files import STDOUT
from mmspec.recipes import configured_recipe


def image(
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", show_default=False, help="What the images show.")],
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
    named = None if recipe is None else read_recipe(recipe, window)
    paths = plan(output, len(prompts) * number)
    if output == STDOUT and as_json:
        raise ArgumentError(f"{OPTION}: - excludes --json, which also writes to stdout")

    from mmspec.vision.png import write_png

    sampling = given(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
        guidance_scale=guidance_scale, height=height, width=width, negative_prompt=negative_prompt,
    )  # fmt: skip
    pipe = load_image_generator(model, device, drafter, tokenizer, dtype)
    chosen = named or read_recipe(configured_recipe(pipe), window)
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
    notes |= {name: str(value) for name, value in sampling.items()}
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
