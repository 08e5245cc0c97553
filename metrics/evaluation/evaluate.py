"""The whole of an evaluation: draw, look, compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmspec.conformance import Conformity
from mmspec.errors import ArgumentError
from mmspec.metrics.evaluation.config import Config
from mmspec.metrics.evaluation.generation import OTHER_SEEDS, generate, keys, units
from mmspec.metrics.evaluation.journal import Journal, Key, Sample
from mmspec.metrics.evaluation.pictures import Reader, list_pictures
from mmspec.metrics.evaluation.processes import Processes
from mmspec.metrics.evaluation.quality import Metric, Quality, check_count, compare, read_metric
from mmspec.metrics.evaluation.speed import Speed, speed_of
from mmspec.metrics.features import Features
from mmspec.metrics.pipe import Pipe
from mmspec.metrics.reference import Reference, load_reference, reference_of
from mmspec.recipes import Recipe, parse


@dataclass(frozen=True)
class Row:
    """What was found of one recipe. `gate`: whether its check of exactness passed; None for a relaxed one."""

    recipe: str
    exact: bool
    gate: bool | None
    speed: Speed
    quality: dict[str, Quality]


def check(config: Config) -> list[Metric]:
    """The metrics; everything that can be found out before the first sample is drawn.

    **Raises:** `UnknownNameError`, or `ArgumentError` for too few samples, prompts that a metric cannot read, a
    reference that is not there.
    """
    count = len(config.prompts) * len(config.seeds)
    if count < 2:
        raise ArgumentError(f"--prompts and --seeds make {count} sample; a comparison needs at least 2")
    metrics = [read_metric(name, config.weights) for name in config.metrics]
    for metric in metrics:
        check_count(metric, count)
        if metric.family in ("attributes", "captions"):
            from mmspec.vision.shapes.grammar import parse as read_caption

            for prompt in config.prompts:
                read_caption(prompt)
    if config.reference != "plain" and not Path(config.reference).exists():
        raise ArgumentError(f"--reference: '{config.reference}' must be 'plain', an .npz file or a folder of pictures")
    return metrics


def evaluate(
    pipe: Pipe,
    config: Config,
    folder: Path,
    gate: Callable[[Recipe], Conformity],
    processes: Processes = Processes(),  # noqa: B008 (frozen)
    on_sample: Callable[[Key], None] | None = None,
) -> list[Row] | None:
    """One row per recipe, plain first; None on every process but the first.

    Pictures are looked at when all are drawn, so that a metric can be added to results that are there. Each process
    looks at its share; the features are gathered, and everything is computed of them on the first, by generators of
    its own: the numbers do not depend on how many processes there are. They must see the same folder.

    **Arguments:**

    - `gate`: asked once for every recipe that says it is exact; without its yes no speed-up is reported.
    - `on_sample`: see `generate`.
    """
    metrics = check(config)
    own_reference = config.reference == "plain" and any(metric.needs_reference for metric in metrics)
    reader = Reader(metrics, config.weights, config.device)
    generate(pipe, config, folder, keys(config, own_reference), processes, on_sample)
    processes.gather(None)  # until all have drawn
    done = Journal(folder).read()
    drawn = [[done[recipe, prompt, seed] for prompt, seed in units(config)] for recipe in config.recipes]
    tables = [_look(reader, folder, samples, processes, True) for samples in drawn]
    other = [done["plain", prompt, seed + OTHER_SEEDS] for prompt, seed in units(config)] if own_reference else []
    plain = _look(reader, folder, other, processes, False) if other else {}
    if processes.rank:
        return None
    references = {
        name: reference_of(plain[name], name) if other else _from_disk(Path(config.reference), reader, name)
        for name in {metric.extractor for metric in metrics if metric.needs_reference}
    }
    found = {
        metric.name: compare(metric, tables, references.get(metric.extractor), reader.identity(metric))
        for metric in metrics
    }
    return [_row(i, name, drawn, found, gate) for i, name in enumerate(config.recipes)]


def _look(
    reader: Reader, folder: Path, samples: Sequence[Sample], processes: Processes, with_scores: bool
) -> dict[str, Features]:
    """All columns of these samples, each process having looked at its share."""
    mine = processes.share(samples)
    paths = [folder / sample.image for sample in mine]
    columns: dict[str, Features] = {}
    if mine:
        columns |= reader.features(paths)
        if with_scores:
            columns |= reader.scores(paths, [sample.prompt for sample in mine])
    shares = processes.gather(columns)
    names = list(shares[0])  # the first process has a share whenever there is any
    found = {name: np.stack(processes.whole([list(share.get(name, ())) for share in shares])) for name in names}
    if "entropy of samples" in reader.columns:
        found["entropy of samples"] = np.array([np.nan if s.entropy is None else s.entropy for s in samples])
    return found


def _from_disk(path: Path, reader: Reader, name: str) -> Reference:
    if path.is_file():
        from mmspec.metrics.extractors.extractor import identity

        return load_reference(path, identity(reader.extractors[name]))
    return reference_of(reader.features(list_pictures(path))[name], name)


def _row(
    index: int,
    name: str,
    drawn: Sequence[Sequence[Sample]],
    found: Mapping[str, Sequence[Quality]],
    gate: Callable[[Recipe], Conformity],
) -> Row:
    recipe = parse(name)
    passed = gate(recipe).ok if recipe.exact else None
    speed = speed_of(drawn[index], drawn[0], passed)
    return Row(name, recipe.exact, passed, speed, {metric: values[index] for metric, values in found.items()})
