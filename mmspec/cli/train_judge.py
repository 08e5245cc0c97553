"""`mmspec train-judge`: trains the classifier of the acceptance rule `judge`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmspec.cli.builtin_prompts import builtin_prompts
from mmspec.cli.metric_weights import ClipWeights, Dinov2Weights, InceptionWeights, ShapesWeights
from mmspec.cli.options import Device, Json, Model
from mmspec.cli.output_paths import OPTION, check_folder, read_output
from mmspec.cli.pipelines import load_pipeline
from mmspec.cli.run_progress import EVERY, LogEvery, RunProgress
from mmspec.cli.train_drafter import check_trainable
from mmspec.errors import ArgumentError, unknown_name

if TYPE_CHECKING:
    from mmspec.methods.judge.training import Distance

METRICS = ("shapes", "scenes", "dinov2", "clip", "inception")


def train_judge(
    output: Annotated[
        Path, typer.Option("-o", "--output", parser=read_output, metavar="FOLDER", help="The judge's folder.")
    ],
    model: Model = "shapes",
    metric: Annotated[
        str, typer.Option(help=f"The extractor whose features of two images are compared: {', '.join(METRICS)}.")
    ] = "shapes",
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=10.0,
            help="Images are equal up to this share of the median distance between two seeds of one prompt.",
        ),
    ] = 0.25,
    prompts: Annotated[str, typer.Option(help="A text file with a prompt per line, or `builtin`.")] = "builtin",
    held_out: Annotated[int, typer.Option(min=1, help="Prompts, the last ones, that only measure the judge.")] = 8,
    pairs: Annotated[int, typer.Option(min=32, help="Pairs of images to train on; half as many measure.")] = 1024,
    temperature: Annotated[
        float | None, typer.Option(min=0.05, max=10.0, help="Temperature of the images; default: the model's.")
    ] = None,
    guidance_scale: Annotated[
        float | None, typer.Option(min=0.0, max=100.0, help="Their guidance; default: the model's.")
    ] = None,
    shapes: ShapesWeights = None,
    inception: InceptionWeights = None,
    clip: ClipWeights = None,
    dinov2: Dinov2Weights = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="Seed of the images and the replaced tokens.")] = 0,
    device: Device = "cpu",
    log_every: LogEvery = EVERY,
    as_json: Json = False,
) -> None:
    """Train the judge of the recipe `judge` on images that differ in one token, and print its folder.

    In one image of each pair a token is replaced, and the model continues from there with the same random numbers; the
    judge learns which replaced tokens the metric does not notice. `mmspec image --drafter FOLDER --recipe judge`, or in
    Python `pipe.add_drafter(FOLDER)`, uses the folder. Its `training.json` has the judge's quality on held-out prompts.
    """
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    check_folder(output, OPTION, "training.json")

    from mmspec.files import replacing_folder
    from mmspec.files.folders import replacing_inside
    from mmspec.files.locks import locked
    from mmspec.methods.judge import training
    from mmspec.metrics.prompts import read_prompts
    from mmspec.training.trainer import split_prompts

    weights = {"shapes": shapes, "inception": inception, "clip": clip, "dinov2": dinov2}
    train_on, measure_on = split_prompts(read_prompts(prompts), held_out)
    settings = training.JudgeSettings(metric, tolerance, train_on, measure_on, pairs, seed, temperature, guidance_scale)
    pipe = load_pipeline(model, device, None)
    check_trainable(pipe)
    if prompts == "builtin":
        train_on, measure_on = split_prompts(builtin_prompts(model, pipe), held_out)
        settings = replace(settings, prompts=train_on, held_out=measure_on)
    distance = image_distance(pipe, metric, {name: where for name, where in weights.items() if where}, device)
    output.mkdir(parents=True, exist_ok=True)
    with (
        locked(output, OPTION),
        RunProgress(pairs + pairs // 2, "pairs", quiet=as_json, every=log_every) as progress,
    ):
        judge, record = training.train_judge(pipe, distance, settings, progress.update)
        with replacing_folder(output) as folder:
            judge.save_pretrained(folder)
        with replacing_inside(output, "training.json") as file:
            file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"output": str(output), **record}) if as_json else output)


def image_distance(pipe: Any, metric: str, weights: dict[str, str], device: str) -> Distance:
    """The distance of two images in the features of an extractor, as a function of their tokens.

    Raises:
        ArgumentError: If the model's tokens are not those of images.
    """
    import numpy as np

    from mmspec.metrics.extractors.registry import load_extractor

    if not hasattr(pipe, "decode") or not hasattr(pipe, "image_processor") and not hasattr(pipe, "vqvae"):
        raise ArgumentError("a judge is trained for models of images; this one generates audio")
    extractor = load_extractor(metric, weights, device)

    def features(tokens: Any) -> Any:
        images = pipe.decode(tokens.to(pipe.device), output_type="np")
        return np.asarray(extractor((np.asarray(images) * 255).round().astype(np.uint8)))

    return lambda first, second: np.linalg.norm(features(first) - features(second), axis=1)
