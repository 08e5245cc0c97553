"""The whole of an evaluation: draw, look, compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmspec.errors import ArgumentError
from mmspec.metrics.audio.log_mel_distance import pooled
from mmspec.metrics.bench.pipe import Pipe
from mmspec.metrics.evaluation.config import Config
from mmspec.metrics.evaluation.distributed import Processes
from mmspec.metrics.evaluation.features import Columns, FeatureExtraction
from mmspec.metrics.evaluation.generation import OTHER_SEEDS, generate, keys, units
from mmspec.metrics.evaluation.journal import Journal, Key, Sample
from mmspec.metrics.evaluation.media import check_readable, list_media
from mmspec.metrics.evaluation.quality import Metric, Quality, compare, read_metrics
from mmspec.metrics.evaluation.speed import Speed, speed_of
from mmspec.metrics.features import Features
from mmspec.metrics.image.frechet import Gaussian
from mmspec.metrics.reference import Reference, load_reference, reference_of
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.exactness import ExactnessResult
from mmspec.testing.latents import LatentExactnessResult


@dataclass(frozen=True)
class Row:
    """What was found of one recipe. `gate`: whether its check of exactness passed; None for a relaxed one."""

    recipe: str
    exact: bool
    gate: bool | None
    speed: Speed
    quality: dict[str, Quality]


@dataclass(frozen=True)
class Found:
    """One row per recipe, plain first; `skipped`: why files were left out, one line each."""

    rows: list[Row]
    skipped: list[str]


def check(config: Config) -> list[Metric]:
    """The metrics; everything that can be found out before the first sample is drawn.

    Raises:
        UnknownNameError: For a name of a metric or an extractor that does not exist.
        ArgumentError: For too few samples, prompts that a metric cannot read, a reference that is not there, settings
            out of range.
    """
    count = len(config.prompts) * len(config.seeds)
    if count < 2:
        raise ArgumentError(f"--prompts and --seeds make {count} sample; a comparison needs at least 2")
    SamplingParams(**{key: value for key, value in config.sampling.items() if value is not None})
    metrics = read_metrics(config.metrics, config.weights, count)
    if any(metric.family in ("attributes", "captions") for metric in metrics):
        from mmspec.vision.shapes.grammar import parse as read_caption

        for prompt in config.prompts:
            read_caption(prompt)
    if config.reference != "plain" and not Path(config.reference).exists():
        raise ArgumentError(
            f"--reference: '{config.reference}' must be 'plain', an .npz file or a folder of images or recordings"
        )
    return metrics


def evaluate(
    pipe: Pipe,
    config: Config,
    folder: Path,
    gate: Callable[[Recipe], ExactnessResult | LatentExactnessResult],
    processes: Processes = Processes(),  # noqa: B008 (frozen)
    on_sample: Callable[[Key], None] | None = None,
) -> Found | None:
    """What there is to report; None on every process but the first.

    Files are looked at when all are drawn, so that a metric can be added to results that are there. Each process looks
    at its share; the features are gathered, and everything is computed of them on the first, by generators of its own:
    the numbers do not depend on how many processes there are. They must see the same folder. A file that cannot be read
    is left out together with those of the same prompt and seed, so that recipes stay comparable.

    Args:
        gate: Asked once for every recipe that says it is exact; without its yes no speed-up is reported.
        on_sample: See `generate`.

    Raises:
        ArgumentError: As `check`, and for files that cannot be read where the configuration is strict or too few are
            left.
    """
    metrics = check(config)
    own_reference = config.reference == "plain" and any(metric.needs_reference for metric in metrics)
    extraction = FeatureExtraction(metrics, config.weights, config.device)
    generate(pipe, config, folder, keys(config, own_reference), processes, on_sample)
    processes.gather(None)  # until all have drawn
    done = Journal(folder).read()
    drawn = [[done[recipe, prompt, seed] for prompt, seed in units(config)] for recipe in config.recipes]
    sets = [*drawn]
    if own_reference:
        sets.append([done["plain", prompt, seed + OTHER_SEEDS] for prompt, seed in units(config)])
    kept, skipped = readable(folder, sets, processes, config.strict)
    whole = [[samples[i] for i in kept] for samples in sets]
    tables = [_extract(extraction, folder, samples, processes) for samples in whole[: len(drawn)]]
    plain = _extract(extraction, folder, whole[-1], processes) if own_reference else {}
    if processes.rank:
        return None
    references = {
        metric.column: _reference(metric, plain, extraction)
        if plain
        else from_disk(Path(config.reference), extraction, metric)
        for metric in metrics
        if metric.needs_reference
    }
    found = {
        metric.name: compare(metric, tables, references.get(metric.column), extraction.identity(metric))
        for metric in metrics
    }
    return Found([_row(i, name, drawn, found, gate, config.batch) for i, name in enumerate(config.recipes)], skipped)


def readable(
    folder: Path, sets: Sequence[Sequence[Sample]], processes: Processes, strict: bool
) -> tuple[list[int], list[str]]:
    """Which samples of equally ordered sets can be read in all of them, and why others cannot."""
    where = [(i, sample.file) for samples in sets for i, sample in enumerate(samples)]
    mine = [(i, reason) for i, file in processes.share(where) if (reason := check_readable(folder / file))]
    broken = [one for share in processes.gather(mine) for one in share]
    skipped = sorted(reason for _, reason in broken)
    if broken and strict:
        raise ArgumentError(
            f"{skipped[0]}; {len(broken)} of {len(where)} files are so: delete them and run again, to draw them anew"
        )
    lost = {i for i, _ in broken}
    return [i for i in range(len(sets[0])) if i not in lost], skipped


def _extract(extraction: FeatureExtraction, folder: Path, samples: Sequence[Sample], processes: Processes) -> Columns:
    """All columns of these samples, each process having looked at its share."""
    mine = processes.share(samples)
    columns = extraction.extract([folder / sample.file for sample in mine], [sample.prompt for sample in mine])
    shares = processes.gather(columns)
    names = list(shares[0])  # the first process has a share whenever there is any
    found = {name: np.stack(processes.whole([list(share.get(name, ())) for share in shares])) for name in names}
    for name in ("entropy", "nll"):
        values: list[float | None] = [getattr(sample, name) for sample in samples]
        if f"{name} of samples" in extraction.columns:
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                raise ArgumentError(f"metric {name!r} is not possible: this model's pipeline does not measure it")
            found[f"{name} of samples"] = np.array(known)
    return found


def _reference(metric: Metric, columns: Mapping[str, Features], extraction: FeatureExtraction) -> Reference:
    features = columns[metric.column]
    if metric.family == "logmel":
        return Reference(pooled(features))
    if metric.family == "speaker" and len(features) == 1:
        width = features.shape[1]
        return Reference(Gaussian(features[0], np.zeros((width, width)), 1), features, extraction.identity(metric))
    return reference_of(features, extraction.identity(metric))


def from_disk(path: Path, extraction: FeatureExtraction, metric: Metric) -> Reference:
    """The reference that an .npz or a folder makes.

    Raises:
        ArgumentError: When there is none to be had.
    """
    if path.is_file():
        return load_reference(path, extraction.identity(metric))
    return _reference(metric, extraction.extract(list_media(path, "--reference"), None), extraction)


def _row(
    index: int,
    name: str,
    drawn: Sequence[Sequence[Sample]],
    found: Mapping[str, Sequence[Quality]],
    gate: Callable[[Recipe], ExactnessResult | LatentExactnessResult],
    batch: int,
) -> Row:
    recipe = parse(name)
    passed = gate(recipe).ok if recipe.exact else None
    speed = speed_of(drawn[index], drawn[0], passed, batch)
    return Row(name, recipe.exact, passed, speed, {metric: values[index] for metric, values in found.items()})
