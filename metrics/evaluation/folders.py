"""Metrics of existing folders of images or recordings, from any source, as in an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmspec.errors import ArgumentError
from mmspec.media.images import open_image
from mmspec.media.listing import list_folders
from mmspec.metrics.evaluation.evaluate import reference_from
from mmspec.metrics.evaluation.features import FeaturePipeline
from mmspec.metrics.evaluation.media import check_readable, is_audio, list_media
from mmspec.metrics.evaluation.quality import Quality, compare, find_metrics, refuse_unread_weights
from mmspec.metrics.reference import load_reference


@dataclass(frozen=True)
class FolderResults:
    """The metrics of several folders.

    Attributes:
        folders: Their paths.
        quality: For each folder, by metric.
        paired: Whether their files have the same names, so that there are differences from the first folder.
        skipped: Why files were left out, one line each.
    """

    folders: list[str]
    quality: list[dict[str, Quality]]
    paired: bool
    skipped: list[str]


def measure_folders(
    folders: Sequence[Path],
    names: Sequence[str],
    *,
    reference: Path | None = None,
    prompts: Sequence[str] | None = None,
    weights: Mapping[str, str] | None = None,
    device: str = "cpu",
    strict: bool = False,
) -> FolderResults:
    """Measures folders and compares them with the first.

    Args:
        folders: Of images, or of recordings.
        names: Of metrics; see `mmspec.metrics.registry`.
        reference: An .npz of statistics or a folder, for metrics that need one.
        prompts: One for each file, in the order of their names; None takes the prompt that mmspec stores in PNG files.
        weights: For each extractor, the folder, file or Hub id to load.
        device: Where extractors run.
        strict: Refuse files that cannot be read, instead of leaving them out of all folders that pair with theirs.

    Raises:
        ArgumentError: If a metric cannot be computed from files, prompts are missing, files are too few, and as
            `FeaturePipeline`.
    """
    listed = [list_media(folder, "DIR") for folder in folders]
    metrics = find_metrics(names, weights or {}, min(map(len, listed)))
    refuse_unread_weights(metrics, weights or {})
    for metric in metrics:
        if metric.statistic:
            raise ArgumentError(
                f"metric {metric.name!r} is measured while a model generates, not on files; see `mmspec eval`"
            )
        if metric.needs_reference and reference is None:
            raise ArgumentError(f"metric {metric.name!r} needs --reference: an .npz of statistics, or a folder")
    if reference is not None:
        _check_reference(reference)
    if prompts is not None and any(len(paths) != len(prompts) for paths in listed):
        counts = ", ".join(str(len(paths)) for paths in listed)
        raise ArgumentError(f"--prompts has {len(prompts)} prompts, the folders hold {counts} files; each needs one")
    paired = len({tuple(path.name for path in paths) for paths in listed}) == 1
    broken = [[check_readable(path) for path in paths] for paths in listed]
    skipped = [reason for reasons in broken for reason in reasons if reason]
    if skipped and strict:
        raise ArgumentError(f"{skipped[0]}; {len(skipped)} of {sum(map(len, listed))} files are unreadable")
    for folder in folders:
        if inner := list_folders(folder):
            skipped.append(f"'{folder}' has folders, such as '{inner[0].name}', whose files are not measured")
    lost = {i for reasons in broken for i, reason in enumerate(reasons) if reason} if paired else set()
    features = FeaturePipeline(metrics, weights or {}, device)
    tables = []
    for paths, reasons in zip(listed, broken, strict=True):
        kept = [i for i in range(len(paths)) if i not in lost and not reasons[i]]
        chosen = [paths[i] for i in kept]
        if any(metric.needs_prompts for metric in metrics):
            texts = [_stored_prompt(path) for path in chosen] if prompts is None else [prompts[i] for i in kept]
            tables.append(features.extract(chosen, texts))
        else:
            tables.append(features.extract(chosen, None))
    references = {
        metric.name: reference_from(reference, features, metric)
        for metric in metrics
        if metric.needs_reference and reference is not None
    }
    columns = {
        metric.name: compare(metric, tables, references.get(metric.name), features.identity(metric), paired)
        for metric in metrics
    }
    quality = [{name: values[i] for name, values in columns.items()} for i in range(len(folders))]
    return FolderResults([str(folder) for folder in folders], quality, paired, skipped)


def _check_reference(path: Path) -> None:
    """Refuses a reference that is neither a folder with media nor statistics, even where no metric needs one."""
    if path.is_dir():
        list_media(path, "--reference")
    elif path.is_file():
        load_reference(path)
    else:
        raise ArgumentError(f"--reference: '{path}' must be an .npz file or a folder of images or recordings")


def _stored_prompt(path: Path) -> str:
    """The prompt that mmspec stored in a PNG file."""
    if not is_audio(path):
        with open_image(path) as image:
            prompt = image.info.get("prompt")
        if isinstance(prompt, str) and prompt:
            return prompt
    raise ArgumentError(f"'{path}' holds no prompt; name a file with one prompt per line by --prompts")
