"""Folders of images or recordings that are there already, whoever made them: measured as an evaluation's are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from mmspec.errors import ArgumentError
from mmspec.metrics.evaluation.evaluate import from_disk
from mmspec.metrics.evaluation.features import FeatureExtraction
from mmspec.metrics.evaluation.media import check_readable, is_audio, list_media
from mmspec.metrics.evaluation.quality import Quality, compare, read_metrics


@dataclass(frozen=True)
class Measured:
    """What was found of each folder; `paired`: their files have the same names, so that differences are told."""

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
) -> Measured:
    """The metrics of folders; the first is what the others are compared with.

    Args:
        names: Of metrics; see `mmspec.metrics.evaluation.quality`.
        reference: An .npz of statistics or a folder, for metrics that need one.
        prompts: One for each file, in the order of their names; None takes what mmspec wrote into its PNG files.
        weights: See `mmspec.metrics.extractors.names.make_extractor`.
        device: See `mmspec.metrics.extractors.names.make_extractor`.
        strict: Refuse files that cannot be read, instead of leaving them out of all folders that pair with theirs.

    Raises:
        ArgumentError: For metrics that folders cannot have, missing prompts, too few files, and as `FeatureExtraction`.
    """
    listed = [list_media(folder, "DIR") for folder in folders]
    metrics = read_metrics(names, weights or {}, min(map(len, listed)))
    for metric in metrics:
        if metric.family in ("entropy", "nll"):
            raise ArgumentError(f"metric {metric.name!r} is of a model, and not to be had of files; see `mmspec eval`")
        if metric.needs_reference and reference is None:
            raise ArgumentError(f"metric {metric.name!r} needs --reference: an .npz of statistics, or a folder")
    if reference is not None and not reference.exists():
        raise ArgumentError(f"--reference: '{reference}' must be an .npz file or a folder of images or recordings")
    if prompts is not None and any(len(paths) != len(prompts) for paths in listed):
        counts = ", ".join(str(len(paths)) for paths in listed)
        raise ArgumentError(f"--prompts has {len(prompts)} prompts, the folders hold {counts} files; each needs one")
    paired = len({tuple(path.name for path in paths) for paths in listed}) == 1
    broken = [[check_readable(path) for path in paths] for paths in listed]
    skipped = [reason for reasons in broken for reason in reasons if reason]
    if skipped and strict:
        raise ArgumentError(f"{skipped[0]}; {len(skipped)} of {sum(map(len, listed))} files are so")
    lost = {i for reasons in broken for i, reason in enumerate(reasons) if reason} if paired else set()
    extraction = FeatureExtraction(metrics, weights or {}, device)
    tables = []
    for paths, reasons in zip(listed, broken, strict=True):
        kept = [i for i in range(len(paths)) if i not in lost and not reasons[i]]
        chosen = [paths[i] for i in kept]
        if any(metric.of_samples for metric in metrics):
            said = [_prompt(path) for path in chosen] if prompts is None else [prompts[i] for i in kept]
            tables.append(extraction.extract(chosen, said))
        else:
            tables.append(extraction.extract(chosen, None))
    references = {
        metric.column: from_disk(reference, extraction, metric)
        for metric in metrics
        if metric.needs_reference and reference is not None
    }
    columns = {
        metric.name: compare(metric, tables, references.get(metric.column), extraction.identity(metric), paired)
        for metric in metrics
    }
    quality = [{name: values[i] for name, values in columns.items()} for i in range(len(folders))]
    return Measured([str(folder) for folder in folders], quality, paired, skipped)


def _prompt(path: Path) -> str:
    """What a PNG of mmspec says it shows.

    Raises:
        ArgumentError: For a file that says nothing.
    """
    if not is_audio(path):
        with Image.open(path) as picture:
            said = picture.info.get("prompt")
        if isinstance(said, str) and said:
            return said
    raise ArgumentError(f"'{path}' does not say its prompt; name a file with one per line by --prompts")
