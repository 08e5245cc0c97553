"""`mmspec measure`: metrics of existing folders of images or recordings."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.cli.metric_weights import (
    ClapWeights,
    ClipWeights,
    DetectorWeights,
    Dinov2Weights,
    DPGQuestions,
    HPSv2Weights,
    HPSv3Weights,
    ImageRewardWeights,
    InceptionWeights,
    PickScoreWeights,
    ShapesWeights,
    UTMOSWeights,
    VQAWeights,
    WavLMWeights,
    WhisperWeights,
)
from mmspec.cli.options import Device, Json
from mmspec.cli.pipelines import disable_loading_bars
from mmspec.errors import ArgumentError


def measure(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of images, or of recordings.")],
    metrics: Annotated[str, typer.Option(help="As in `mmspec eval`, separated by commas.")],
    reference: Annotated[
        Path | None, typer.Option(show_default=False, help="Of distances: an .npz of statistics, or a folder.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(show_default="stored in mmspec's PNG files", help="A text file with one line per file, by name."),
    ] = None,
    save_reference: Annotated[
        Path | None,
        typer.Option(show_default=False, help="Write the statistics of the folder to this .npz instead."),
    ] = None,
    shapes: ShapesWeights = None,
    inception: InceptionWeights = None,
    clip: ClipWeights = None,
    dinov2: Dinov2Weights = None,
    clap: ClapWeights = None,
    wavlm: WavLMWeights = None,
    whisper: WhisperWeights = None,
    hpsv2: HPSv2Weights = None,
    pickscore: PickScoreWeights = None,
    imagereward: ImageRewardWeights = None,
    hpsv3: HPSv3Weights = None,
    utmos: UTMOSWeights = None,
    vqa: VQAWeights = None,
    dpg: DPGQuestions = None,
    detector: DetectorWeights = None,
    device: Device = "cpu",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse files that cannot be read.")] = False,
    as_json: Json = False,
) -> None:
    """Measure folders from any source, with 95 % intervals and, if file names pair, differences from the first folder.

    With --save-reference nothing is measured: mu, sigma and the features of the one extractor that --metrics names are
    saved, for --reference of later runs.
    """
    networks = {
        "shapes": shapes, "inception": inception, "clip": clip, "dinov2": dinov2, "clap": clap, "wavlm": wavlm,
        "whisper": whisper, "hpsv2": hpsv2, "pickscore": pickscore, "detector": detector,
        "imagereward": imagereward, "hpsv3": hpsv3, "utmos": utmos, "vqa": vqa, "dpg": dpg,
    }  # fmt: skip
    weights = {name: where for name, where in networks.items() if where}
    names = list(dict.fromkeys(name.strip() for name in metrics.split(",") if name.strip()))
    if not names:
        raise ArgumentError("--metrics: no metric named; see `mmspec eval --help`")
    from mmspec.arguments import check_device

    check_device(device)
    disable_loading_bars()
    if save_reference is not None:
        if len(folders) > 1:
            raise ArgumentError(f"--save-reference writes the statistics of one folder, not of {len(folders)}")
        print(_save(folders[0], names, weights, device, save_reference))
        return
    from mmspec.metrics.evaluation.folders import measure_folders
    from mmspec.metrics.prompts import read_prompts

    texts = None if prompts is None else read_prompts(str(prompts))
    found = measure_folders(
        folders, names, reference=reference, prompts=texts, weights=weights, device=device, strict=strict
    )
    for reason in found.skipped:
        print(f"mmspec: left out: {reason}", file=sys.stderr)
    print(json.dumps(asdict(found)) if as_json else _table(asdict(found)))


def _save(folder: Path, names: list[str], weights: dict[str, str], device: str, path: Path) -> Path:
    from mmspec.files import check_writable
    from mmspec.metrics.evaluation.evaluate import reference_from
    from mmspec.metrics.evaluation.features import FeaturePipeline
    from mmspec.metrics.evaluation.quality import find_metrics, refuse_unread_weights
    from mmspec.metrics.reference import Reference, save_reference

    check_writable(path, "--save-reference")
    found = find_metrics(names, weights, 4)
    refuse_unread_weights(found, weights)
    metrics = [metric for metric in found if metric.needs_reference]
    if len({metric.column for metric in metrics}) != 1:
        raise ArgumentError(
            f"--save-reference keeps the features of one extractor; --metrics {','.join(names)} names none, or several"
        )
    if not folder.is_dir():
        raise ArgumentError(f"DIR: '{folder}' is not a folder")
    reference = reference_from(folder, FeaturePipeline(metrics, weights, device), metrics[0])
    if not isinstance(reference, Reference):
        raise ArgumentError(f"--save-reference: metric {metrics[0].name!r} compares single samples, not statistics")
    save_reference(reference, path)
    return path


def _table(found: dict[str, Any]) -> str:
    from mmspec.metrics.evaluation.results import aligned, short

    names = list(found["quality"][0])
    differences = found["paired"] and len(found["folders"]) > 1
    lines = [["folder", "N", *(part for name in names for part in ([name, "difference"] if differences else [name]))]]
    for folder, quality in zip(found["folders"], found["quality"], strict=True):
        cells = [folder, str(quality[names[0]]["n"])]
        for name in names:
            cells += [short(quality[name]), *([short(quality[name]["difference"])] if differences else [])]
        lines.append(cells)
    return aligned(lines, 1)
