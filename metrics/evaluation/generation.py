"""Generates the samples of an evaluation: every recipe for every prompt and seed, each recorded when it is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from mmspec.bulk.media import AudioClip, Medium, encode_medium, media_of, notes_of, suffix_of, write_durably
from mmspec.bulk.rows import row_stats
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import Step
from mmspec.environment.distributed import ProcessGroup
from mmspec.errors import ArgumentError
from mmspec.files.folders import make_folder
from mmspec.metrics.bench.pipe import Pipe
from mmspec.metrics.evaluation.config import EvalConfig
from mmspec.metrics.evaluation.journal import Journal, Key, SampleRecord, sample_path
from mmspec.metrics.evaluation.quality import check_kind, check_statistics
from mmspec.metrics.evaluation.sweep import LAST_SEED
from mmspec.metrics.metric import Metric
from mmspec.pipeline import makes_audio
from mmspec.recipes import parse
from mmspec.sampling.seeds import pipeline_seed

REFERENCE_SEEDS = LAST_SEED  # added to the seeds of the plain samples that serve as reference
Unit = tuple[str, int]  # prompt, seed


def units(config: EvalConfig) -> list[Unit]:
    """Every prompt with every seed, in a fixed order."""
    return list(product(config.prompts, config.seeds))


def keys(config: EvalConfig, needs_reference: bool) -> list[list[list[Key]]]:
    """The samples to generate: groups of units that share a call, with a list of keys per recipe in each.

    If distances need a reference, each group has one more list: plain decoding with other seeds.
    """
    wanted, every = _wanted(config, needs_reference), units(config)
    groups = [every[first : first + config.batch] for first in range(0, len(every), config.batch)]
    return [
        [[(recipe, prompt, seed + offset) for prompt, seed in group] for recipe, offset in wanted] for group in groups
    ]


def finished_prompts(config: EvalConfig, needs_reference: bool, done: Container[Key]) -> int:
    """The number of prompts, from the first, of which every sample of `keys` is finished."""
    wanted = _wanted(config, needs_reference)
    for count, prompt in enumerate(config.prompts):
        if any((recipe, prompt, seed + offset) not in done for recipe, offset in wanted for seed in config.seeds):
            return count
    return len(config.prompts)


def _wanted(config: EvalConfig, needs_reference: bool) -> list[tuple[str, int]]:
    """What is generated for each prompt and seed: a recipe, and a number that is added to the seed."""
    return [*((recipe, 0) for recipe in config.recipes), *([("plain", REFERENCE_SEEDS)] if needs_reference else [])]


@dataclass
class _PipelineCall:
    """One call of the pipeline.

    Attributes:
        media: The images or recordings, one per prompt.
        seconds: Wall-clock time.
        first: Seconds until the first output.
        gains: For each row, the tokens that each target call emitted.
        notes: Remarks on each image or recording.
    """

    media: list[Medium]
    stats: Stats
    seconds: float
    first: float
    gains: list[list[int]]
    notes: list[list[str]]


def generate(
    pipe: Pipe,
    config: EvalConfig,
    folder: Path,
    wanted: Sequence[Sequence[Sequence[Key]]],
    processes: ProcessGroup = ProcessGroup(),  # noqa: B008 (frozen)
    on_sample: Callable[[Key], None] | None = None,
    metrics: Sequence[Metric] = (),
) -> None:
    """Generates this process's share of the missing samples, `config.batch` samples per call.

    Recipes take turns on each group of prompts and seeds, in rotating order, so that a machine that speeds up or slows
    down does so for all of them. The first call of a recipe is made twice and timed the second time. Recipes that
    differ in the knobs of their rule share that of the first of them, which has prepared the same graphs; where such a
    knob needs kernels or tables of its own, a few target calls prepare them.

    Args:
        pipe: Generates images or audio.
        config: Sampling parameters and batch size.
        wanted: The result of `keys`.
        processes: The processes that share the work.
        on_sample: Called for each sample of the share, including those already finished.
        metrics: What the samples are for; checked against the first one.

    Raises:
        ArgumentError: If a metric cannot be computed from what the pipeline generates, or the width of a recipe's
            windows is not that of its finished samples.
    """
    journal = Journal(folder, processes.rank)
    done = journal.read()
    windows = {record.recipe: record.window for record in done.values() if record.window}
    warm: set[object] = set()
    for i, lists in processes.shard(list(enumerate(wanted))):
        turn = i % len(lists)
        for group in [*lists[turn:], *lists[:turn]]:
            missing = [key for key in group if key not in done]
            if missing:
                like, prepared = _warm_ups(missing[0][0])
                if like not in warm:
                    first = _call(pipe, config, missing)
                    check_kind(metrics, "audio" if isinstance(first.media[0], AudioClip) else "image")
                    check_statistics(metrics, first.stats)
                elif prepared not in warm:
                    with suppress(_Prepared):
                        _call(pipe, config, missing, stop_after=_PREPARING_CALLS)
                warm |= {like, prepared}
                call, recipe = _call(pipe, config, missing), missing[0][0]
                now = call.stats.window
                if now != (before := windows.setdefault(recipe, now)):
                    raise ArgumentError(
                        f"-o/--output: '{folder}' holds results of {recipe!r} with windows of {before} tokens, which "
                        f"has {now} now; name another folder"
                    )
                journal.append(_write(folder, missing, call))
            if on_sample is not None:
                for key in group:
                    on_sample(key)


_PREPARING_CALLS = 4  # target calls after which all kernels of a rule have been compiled
_PREPARED_KNOBS = {"theta", "distance"}  # with fractions for which a table or a kernel is made


class _Prepared(Exception):
    """Ends a call that only prepares."""


def _warm_ups(name: str) -> tuple[object, object]:
    """What recipes that share a whole warm-up call have in common, and those that need no preparation after it."""
    # The former is all but the knobs of the rule. The latter is also the knobs that a kernel is compiled or a table is
    # made for: whole numbers, words and those of `_PREPARED_KNOBS`; other fractions are arguments of kernels.
    recipe = parse(name)
    shared = {knob: value for knob, value in recipe.knobs.items() if knob not in recipe.rule.knobs}
    own = {
        knob: value
        for knob, value in recipe.knobs.items()
        if knob in recipe.rule.knobs and (knob in _PREPARED_KNOBS or not isinstance(value, float))
    }
    like = recipe.name, *shared.items()
    return like, (like, *own.items())


def _call(pipe: Pipe, config: EvalConfig, group: Sequence[Key], stop_after: int | None = None) -> _PipelineCall:
    """Calls the pipeline once, for keys of one recipe; raises `_Prepared` after `stop_after` target calls."""
    recipe = parse(group[0][0])
    prompts, seeds = [prompt for _, prompt, _ in group], [pipeline_seed(prompt, seed) for _, prompt, seed in group]
    lengths, gains = [0] * len(group), [[] for _ in group]  # type: tuple[list[int], list[list[int]]]
    first: list[float] = []
    start = time.perf_counter()

    def on_step(step: Step) -> None:
        if stop_after is not None and step.target_calls >= stop_after:
            raise _Prepared
        if not first:
            first.append(time.perf_counter() - start)
        # A pipeline may split a text into several rows; which row belongs to which text is then unknown.
        for i, length in enumerate(step.lengths if len(step.tokens) == len(group) else ()):
            if length > lengths[i]:
                gains[i].append(length - lengths[i])
                lengths[i] = length

    options: dict[str, Any] = {**config.sampling, "on_step": on_step}
    if config.entropy:  # some pipelines cannot measure it
        options["measure_entropy"] = True
    out = pipe(prompts, recipe=recipe, seed=seeds, **options)
    seconds = time.perf_counter() - start
    wait = first[0] if first else seconds
    media = media_of(out, len(group))
    if isinstance(media[0], AudioClip) and makes_audio(pipe) and hasattr(pipe, "stream"):
        wait = _first_chunk(pipe.stream(prompts[0], recipe=recipe, seed=seeds[0], **config.sampling))
    return _PipelineCall(media, out.stats, seconds, wait, gains, notes_of(out, len(group)))


def _first_chunk(stream: Generator[Any, None, None]) -> float:
    """Seconds until a stream yields its first chunk, or ends without one; closes the stream."""
    start = time.perf_counter()
    next(stream, None)
    seconds = time.perf_counter() - start
    stream.close()
    return seconds


def _write(folder: Path, group: Sequence[Key], call: _PipelineCall) -> list[SampleRecord]:
    """Writes the files, which must be on the disk before the journal lists them, and returns their records."""
    # Threads compress them, and wait for the disk, at the same time. No call runs meanwhile, whose time would suffer.
    samples = _records(group, call)
    for sample in samples:
        make_folder(folder, Path(sample.file).parent)

    def write(medium: Medium, sample: SampleRecord) -> None:
        notes = {"prompt": sample.prompt, "seed": str(sample.drawn), "recipe": sample.recipe}
        write_durably(encode_medium(medium, notes), folder / sample.file)

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, call.media, samples))
    return samples


def _records(group: Sequence[Key], call: _PipelineCall) -> list[SampleRecord]:
    """What the journal says about the samples of a call."""
    stats, count = call.stats, len(group)
    return [
        SampleRecord(
            recipe=recipe,
            prompt=prompt,
            seed=seed,
            drawn=pipeline_seed(prompt, seed),
            file=sample_path(recipe, prompt, seed, suffix_of(medium)).as_posix(),
            seconds=call.seconds / count,
            latency=call.seconds,
            first=call.first,
            parts={part: seconds / count for part, seconds in stats.seconds_by_part.items()},
            tokens=row.tokens,
            calls=row.target_calls,
            gains=gains,
            peak_memory=stats.peak_memory,
            tv_bound=row.tv_bound,
            entropy=row.entropy,
            nll=row.nll,
            acceptance=stats.acceptance,
            grid=_grid(medium, row.tokens),
            length=medium.seconds if isinstance(medium, AudioClip) else None,
            notes=notes,
            window=stats.window,
        )
        for (recipe, prompt, seed), medium, row, gains, notes in zip(
            group, call.media, row_stats(stats, count), call.gains, call.notes, strict=True
        )
    ]


def _grid(medium: Medium, tokens: int) -> int | None:
    """Tokens per row of an image whose tokens form a grid of its aspect ratio; None otherwise."""
    if isinstance(medium, AudioClip):
        return None
    width = round((tokens * medium.width / medium.height) ** 0.5)
    return width if width and width * round(width * medium.height / medium.width) == tokens else None
