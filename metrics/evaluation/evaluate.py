"""A whole evaluation: generate samples, extract their features, compare recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from mmspec import limits
from mmspec.arguments import refused
from mmspec.environment.distributed import ProcessGroup
from mmspec.errors import ArgumentError, unknown_name
from mmspec.metrics.bench.pipe import Pipe, kind_of
from mmspec.metrics.estimate import Estimate
from mmspec.metrics.evaluation.config import EvalConfig
from mmspec.metrics.evaluation.features import Columns, FeaturePipeline
from mmspec.metrics.evaluation.generation import REFERENCE_SEEDS, finished_prompts, generate, keys, units
from mmspec.metrics.evaluation.journal import Journal, Key, SampleRecord
from mmspec.metrics.evaluation.media import check_readable, list_media
from mmspec.metrics.evaluation.quality import Quality, check_kind, find_metrics, measure, with_differences
from mmspec.metrics.evaluation.scores import SampleScores
from mmspec.metrics.evaluation.speed import Speed, speed_of
from mmspec.metrics.metric import Groups, Kind, Metric, Rows
from mmspec.recipes import Recipe, parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.exactness import Verdict


@dataclass(frozen=True)
class RecipeResult:
    """The results of one recipe.

    Attributes:
        recipe: Its name with its knobs.
        exact: Whether it claims to keep the target distribution.
        gate: Whether it passed the exactness check; None for a relaxed recipe.
        speed: What its samples cost.
        quality: By metric.
    """

    recipe: str
    exact: bool
    gate: bool | None
    speed: Speed
    quality: dict[str, Quality]


@dataclass(frozen=True)
class EvaluationResult:
    """The results of an evaluation.

    Attributes:
        rows: One per recipe, plain first.
        skipped: Why files were left out, one line each.
        remarks: On samples that are cut or have no sound and the like, one line per recipe that has some.
        scores: Of single samples, for metrics that have them; None where nothing was measured.
    """

    rows: list[RecipeResult]
    skipped: list[str]
    scores: SampleScores | None = None
    remarks: list[str] = field(default_factory=list)


def check(config: EvalConfig, kind: Kind | None = None) -> list[Metric]:
    """Checks everything that can be checked before the first sample is generated.

    Args:
        config: What to evaluate.
        kind: What the model generates, where it is known.

    Returns:
        The metrics.

    Raises:
        UnknownNameError: If a metric or an extractor does not exist.
        ArgumentError: If there are too few samples, a metric cannot read the prompts, the reference does not exist, or
            a setting is out of range.
    """
    count = len(config.prompts) * len(config.seeds)
    limits.SAMPLES.check("--recipes, --prompts and --seeds", count * len(config.recipes))
    for text in _texts(config):
        if not _is_unicode(text):
            raise ArgumentError(f"{text!r} holds characters that are not valid Unicode; correct the encoding")
    if count < 2:
        raise ArgumentError(f"--prompts and --seeds make {count} sample; a comparison needs at least 2")
    SamplingParams(**config.sampling)
    metrics = find_metrics(config.metrics, config.weights, count)
    if kind is not None:
        check_kind(metrics, kind)
    statistics = [field.name for field in fields(SampleRecord)]
    for metric in metrics:
        if metric.statistic and metric.statistic not in statistics:
            raise unknown_name("statistic", metric.statistic, statistics)
        metric.check_prompts(config.prompts, config.weights)
    if config.reference != "plain" and not Path(config.reference).exists():
        raise ArgumentError(
            f"--reference: '{config.reference}' must be 'plain', an .npz file or a folder of images or recordings"
        )
    return metrics


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that is ready to run: everything that it reads is loaded, and nothing has been written.

    Attributes:
        pipe: Generates images or audio.
        config: What to evaluate.
        metrics: To be measured.
        features: Their extractors.
        references: By metric, what it compares with; empty if that is plain decoding with other seeds.
        processes: The processes that share the work.
    """

    pipe: Pipe
    config: EvalConfig
    metrics: list[Metric]
    features: FeaturePipeline
    references: Mapping[str, Any]
    processes: ProcessGroup

    @property
    def own_reference(self) -> bool:
        """Whether plain decoding with other seeds is generated, as the reference of a metric."""
        return self.config.reference == "plain" and any(metric.needs_reference for metric in self.metrics)


def prepare(
    pipe: Pipe,
    config: EvalConfig,
    processes: ProcessGroup = ProcessGroup(),  # noqa: B008 (frozen)
) -> Evaluation:
    """Loads the extractors and the reference of an evaluation.

    Args:
        pipe: Generates images or audio.
        config: What to evaluate.
        processes: The processes that share the work; the first one loads the reference.

    Raises:
        ArgumentError: If `check` raises it, the model generates what a metric cannot read, or the reference is not
            usable.
        ModelError: If an extractor cannot be loaded.
    """
    metrics = check(config, kind_of(pipe))
    features = FeaturePipeline(metrics, config.weights, config.device)
    references = {
        metric.name: reference_from(Path(config.reference), features, metric)
        for metric in metrics
        if metric.needs_reference and config.reference != "plain" and not processes.rank
    }
    return Evaluation(pipe, config, metrics, features, references, processes)


def generate_samples(evaluation: Evaluation, folder: Path, on_sample: Callable[[Key], None] | None = None) -> None:
    """Generates the missing samples of an evaluation, and waits until all processes have generated theirs.

    Args:
        evaluation: The result of `prepare`.
        folder: The results folder, inside `mmspec.metrics.evaluation.config.open_folder`.
        on_sample: Called for each finished sample; see `generate`.

    Raises:
        ArgumentError: As `generate`.
    """
    config, processes = evaluation.config, evaluation.processes
    wanted = keys(config, evaluation.own_reference)
    generate(evaluation.pipe, config, folder, wanted, processes, on_sample, evaluation.metrics)
    processes.gather(None)


def finished_part(evaluation: Evaluation, folder: Path) -> Evaluation:
    """The evaluation of the first prompts, as many as every recipe has finished.

    Since all recipes take turns on each group of prompts, these are all but the last few that were generated.

    Raises:
        ArgumentError: If they are too few to compare; it says how many there are.
    """
    config, done = evaluation.config, Journal(folder).read()
    count = finished_prompts(config, evaluation.own_reference, done)
    part = replace(config, prompts=config.prompts[:count])
    if not count:
        every = {key for group in keys(config, evaluation.own_reference) for one in group for key in one}
        raise ArgumentError(
            f"{len(every & done.keys()):,} of {len(every):,} samples are finished, and there is no prompt of which "
            "every recipe has finished them"
        )
    try:
        return replace(evaluation, config=part, metrics=check(part))
    except ArgumentError as error:
        raise ArgumentError(
            f"every recipe has finished {count:,} of {len(config.prompts):,} prompts, and {error}"
        ) from error


def measure_samples(evaluation: Evaluation, folder: Path, gate: Callable[[Recipe], Verdict]) -> EvaluationResult | None:
    """Measures the samples of an evaluation, which are all finished.

    Features are extracted after all samples are generated, so that a metric can be added to existing results. Each
    process extracts its shard; the rows are gathered, and the processes share the metrics of recipes and the exactness
    checks, whose generators are seeded for each: the numbers do not depend on the number of processes. All processes
    must see the same folder. A file that cannot be read is left out together with those of the same prompt and seed, so
    that recipes stay comparable.

    Args:
        evaluation: The result of `prepare`, or of `finished_part`.
        gate: The exactness check, called once for every recipe that claims to be exact, in one of the processes; a
            recipe that fails it gets no speed-up.

    Returns:
        None on every process but the first.

    Raises:
        ArgumentError: For files that cannot be read if the configuration is strict or too few are left.
    """
    config, metrics, processes = evaluation.config, evaluation.metrics, evaluation.processes
    features, own_reference = evaluation.features, evaluation.own_reference
    with_reference = [metric for metric in metrics if metric.needs_reference]
    done = Journal(folder).read()
    generated = [[done[recipe, prompt, seed] for prompt, seed in units(config)] for recipe in config.recipes]
    sets = [*generated]
    if own_reference:
        sets.append([done["plain", prompt, seed + REFERENCE_SEEDS] for prompt, seed in units(config)])
    kept, skipped = readable(folder, sets, processes, config.strict)
    whole = [[samples[i] for i in kept] for samples in sets]
    tables = [_extract(features, metrics, folder, samples, processes) for samples in whole[: len(generated)]]
    plain = _extract(features, with_reference, folder, whole[-1], processes) if own_reference else {}
    references = dict(processes.gather(evaluation.references)[0])
    if own_reference:
        for metric in with_reference:
            references[metric.name] = metric.make_reference(plain[metric.column], features.identity(metric))
    several = min(len(config.prompts), len(config.seeds)) > 1
    groups = [units(config)[i][0] for i in kept] if several else None
    estimates = _estimates(metrics, tables, references, groups, processes)
    passed = _verify(config.recipes, gate, processes)
    if processes.rank:
        return None
    relaxed = sum(not parse(name).exact for name in config.recipes)
    quality = {
        metric.name: with_differences(
            estimates[metric.name], [len(kept)] * len(tables), features.identity(metric), comparisons=relaxed
        )
        for metric in metrics
    }
    rows = [_result(i, name, generated, quality, passed[name], config.batch) for i, name in enumerate(config.recipes)]
    scores = {
        metric.name: dict(zip(config.recipes, found, strict=True))
        for metric in metrics
        if None not in (found := [_sample_scores(metric, table[metric.column]) for table in tables])
    }
    remarks = [
        line for name, samples in zip(config.recipes, generated, strict=True) for line in _remarks(name, samples)
    ]
    return EvaluationResult(rows, skipped, SampleScores.of([units(config)[i] for i in kept], scores), remarks)


def _sample_scores(metric: Metric, rows: Rows) -> Sequence[float] | None:
    """The score of each sample, or None for a metric of whole sets."""
    found = metric.sample_scores(rows)
    if found is not None and (not hasattr(found, "__len__") or len(found) != len(rows)):
        raise refused(f"`sample_scores` of the metric {metric.name!r}", f"{len(rows)} numbers, or None", found)
    return found


def _remarks(name: str, samples: Sequence[SampleRecord]) -> list[str]:
    noted = [sample for sample in samples if sample.notes]
    return (
        [f"{name}: {len(noted)} of {len(samples)} samples have remarks, such as {noted[0].notes[0]}"] if noted else []
    )


def readable(
    folder: Path, sets: Sequence[Sequence[SampleRecord]], processes: ProcessGroup, strict: bool
) -> tuple[list[int], list[str]]:
    """The indices of the samples that can be read in all of several equally ordered sets, and why others cannot."""
    where = [(i, sample.file) for samples in sets for i, sample in enumerate(samples)]
    mine = [(i, reason) for i, file in processes.shard(where) if (reason := check_readable(folder / file))]
    broken = [one for shard in processes.gather(mine) for one in shard]
    skipped = sorted(reason for _, reason in broken)
    if broken and strict:
        raise ArgumentError(
            f"{skipped[0]}; {len(broken)} of {len(where)} files are unreadable: delete them and run again to "
            "generate them anew"
        )
    lost = {i for i, _ in broken}
    return [i for i in range(len(sets[0])) if i not in lost], skipped


def _extract(
    features: FeaturePipeline,
    metrics: Sequence[Metric],
    folder: Path,
    samples: Sequence[SampleRecord],
    processes: ProcessGroup,
) -> Columns:
    """The rows of these samples for these metrics, each process extracting its shard."""
    mine = processes.shard(samples)
    columns = features.extract([folder / sample.file for sample in mine], [sample.prompt for sample in mine], metrics)
    shards = processes.gather(columns)
    names = list(shards[0])  # the first process has a sample if there is any
    merged = {name: processes.merge([shard.get(name, []) for shard in shards]) for name in names}
    for metric in metrics:
        if metric.statistic:
            values = [getattr(sample, metric.statistic) for sample in samples]
            if any(value is None for value in values):
                raise ArgumentError(
                    f"metric {metric.name!r} is not possible: this model's pipeline does not measure it"
                )
            merged[metric.column] = [np.asarray(value, dtype=np.float64) for value in values]
    return merged


def _estimates(
    metrics: Sequence[Metric],
    tables: Sequence[Columns],
    references: Mapping[str, Any],
    groups: Groups,
    processes: ProcessGroup,
) -> dict[str, list[Estimate]]:
    """For each metric its estimate for every table, each process measuring its shard."""
    pairs = [(metric, table) for metric in metrics for table in tables]
    mine = [measure(metric, table, references.get(metric.name), groups) for metric, table in processes.shard(pairs)]
    found = iter(processes.merge(processes.gather(mine)))
    return {metric.name: [next(found) for _ in tables] for metric in metrics}


def _verify(
    recipes: Sequence[str],
    gate: Callable[[Recipe], Verdict],
    processes: ProcessGroup,
) -> dict[str, bool | None]:
    """Whether recipes passed the exactness check, each process checking its shard; None for relaxed ones."""
    exact = [name for name in recipes if parse(name).exact]
    passed = processes.merge(processes.gather([gate(parse(name)).ok for name in processes.shard(exact)]))
    return {**dict.fromkeys(recipes), **dict(zip(exact, passed, strict=True))}


def _texts(config: EvalConfig) -> Iterator[str]:
    for value in config.to_dict().values():
        yield from (text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str))


def _is_unicode(text: str) -> bool:
    """False for lone surrogates, which arguments and YAML files may contain and no file can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def reference_from(path: Path, features: FeaturePipeline, metric: Metric) -> Any:
    """The reference of a metric, from an .npz file or a folder.

    Raises:
        ArgumentError: If the path holds no reference that the metric can use.
    """
    if path.is_file():
        return metric.load_reference(path, features.identity(metric))
    if metric.needs_prompts:
        raise ArgumentError(f"--reference: metric {metric.name!r} needs prompts, and '{path}' has none; use 'plain'")
    columns = features.extract(list_media(path, "--reference"), None, [metric])
    return metric.make_reference(columns[metric.column], features.identity(metric))


def _result(
    index: int,
    name: str,
    generated: Sequence[Sequence[SampleRecord]],
    quality: Mapping[str, Sequence[Quality]],
    passed: bool | None,
    batch: int,
) -> RecipeResult:
    speed = speed_of(generated[index], generated[0], passed, batch)
    return RecipeResult(
        name, parse(name).exact, passed, speed, {metric: values[index] for metric, values in quality.items()}
    )
