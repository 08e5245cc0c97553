"""Drawing the samples of an evaluation: every recipe for every prompt and seed, each written down when finished."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from mmspec.decoding.batch import Step
from mmspec.decoding.stats import RowStats, Stats
from mmspec.metrics.bench.pipe import Pipe
from mmspec.metrics.evaluation.config import Config
from mmspec.metrics.evaluation.distributed import Processes
from mmspec.metrics.evaluation.journal import Journal, Key, Sample, sample_path
from mmspec.metrics.evaluation.media import AudioClip, Medium, media_of, suffix_of, write_medium
from mmspec.recipes import parse

OTHER_SEEDS = 2**40  # added to the seeds of the plain samples that serve as reference: nobody asks for those
Unit = tuple[str, int]  # prompt, seed


def units(config: Config) -> list[Unit]:
    """Every prompt with every seed, in a fixed order."""
    return list(product(config.prompts, config.seeds))


def own_seed(prompt: str, seed: int) -> int:
    """The seed that a sample is drawn with, of 48 bits: prompts under one seed must not share their random numbers.

    If they did, a thousand prompts would be a single draw of noise seen a thousand times, and recipes, which use theirs
    differently, would seem to differ by more than chance.
    """
    return int(hashlib.sha256(f"{seed} {prompt}".encode()).hexdigest()[:12], 16)


def keys(config: Config, needs_reference: bool) -> list[list[list[Key]]]:
    """The samples to draw: groups of units that go into one call, in each a list per recipe.

    Where distances need a reference there is one list more, plain decoding by other seeds.
    """
    asked = [(recipe, 0) for recipe in config.recipes]
    if needs_reference:
        asked.append(("plain", OTHER_SEEDS))
    every = units(config)
    groups = [every[first : first + config.batch] for first in range(0, len(every), config.batch)]
    return [
        [[(recipe, prompt, seed + offset) for prompt, seed in group] for recipe, offset in asked] for group in groups
    ]


@dataclass
class _Call:
    """A call and what was seen of it: seconds until the first output, and what each target call gave each row."""

    media: list[Medium]
    stats: Stats
    seconds: float
    first: float
    gains: list[list[int]]


def generate(
    pipe: Pipe,
    config: Config,
    folder: Path,
    wanted: Sequence[Sequence[Sequence[Key]]],
    processes: Processes = Processes(),  # noqa: B008 (frozen)
    on_sample: Callable[[Key], None] | None = None,
) -> None:
    """Draws this process's share of what is not finished yet, `config.batch` samples per call.

    Recipes take turns on each group of prompts and seeds, in rotating order, so that a machine that speeds up or slows
    down does so for all of them. The first call of each is made twice and timed the second time.

    Args:
        wanted: What `keys` gives.
        on_sample: Called for each sample of the share, finished ones included.
    """
    journal = Journal(folder, processes.rank)
    done = journal.read()
    warm: set[str] = set()
    for i, lists in processes.share(list(enumerate(wanted))):
        turn = i % len(lists)
        for asked in [*lists[turn:], *lists[:turn]]:
            missing = [key for key in asked if key not in done]
            if missing:
                if missing[0][0] not in warm:
                    _draw(pipe, config, missing)
                    warm.add(missing[0][0])
                journal.append(_write(folder, missing, _draw(pipe, config, missing)))
            if on_sample is not None:
                for key in asked:
                    on_sample(key)


def _draw(pipe: Pipe, config: Config, asked: Sequence[Key]) -> _Call:
    """One call for keys of one recipe."""
    recipe = parse(asked[0][0])
    prompts, seeds = [prompt for _, prompt, _ in asked], [own_seed(prompt, seed) for _, prompt, seed in asked]
    lengths, gains = [0] * len(asked), [[] for _ in asked]  # type: tuple[list[int], list[list[int]]]
    first: list[float] = []
    start = time.perf_counter()

    def on_step(step: Step) -> None:
        if not first:
            first.append(time.perf_counter() - start)
        # A pipeline may cut a text into rows of its own: of those it is not told which is whose.
        for i, tokens in enumerate(step.tokens if len(step.tokens) == len(asked) else ()):
            if len(tokens) > lengths[i]:
                gains[i].append(len(tokens) - lengths[i])
                lengths[i] = len(tokens)

    options: dict[str, Any] = {**config.sampling, "measure_entropy": config.entropy, "on_step": on_step}
    out = pipe(prompts, recipe=recipe, seed=seeds, **options)
    seconds = time.perf_counter() - start
    wait = first[0] if first else seconds
    media = media_of(out, len(asked))
    if isinstance(media[0], AudioClip) and hasattr(pipe, "stream"):
        wait = _first_sound(pipe.stream(prompts[0], recipe=recipe, seed=seeds[0], **config.sampling))
    return _Call(media, out.stats, seconds, wait, gains)


def _first_sound(stream: Generator[Any, None, None]) -> float:
    """Seconds until a stream gives its first chunk, or ends without one; it is left then."""
    start = time.perf_counter()
    next(stream, None)
    seconds = time.perf_counter() - start
    stream.close()
    return seconds


def _write(folder: Path, asked: Sequence[Key], call: _Call) -> list[Sample]:
    """The files go to the disk before the lines that say they are there."""
    stats, count = call.stats, len(asked)
    # A pipeline that adds up calls of its own may not tell rows apart: they then count alike.
    share = stats.tokens // count
    even = RowStats(share, round(share / stats.tokens_per_call), stats.tv_bound, stats.entropy, stats.nll)
    rows = stats.rows if len(stats.rows) == count else [even] * count
    samples = []
    for (recipe, prompt, seed), medium, row, gains in zip(asked, call.media, rows, call.gains, strict=True):
        path = sample_path(recipe, prompt, seed, suffix_of(medium))
        drawn = own_seed(prompt, seed)
        write_medium(medium, folder / path, {"prompt": prompt, "seed": str(drawn), "recipe": recipe})
        sample = Sample(
            recipe=recipe,
            prompt=prompt,
            seed=seed,
            drawn=drawn,
            file=path.as_posix(),
            seconds=call.seconds / count,
            latency=call.seconds,
            first=call.first,
            parts={part: seconds / count for part, seconds in stats.seconds_by_part.items()},
            tokens=row.tokens,
            calls=row.calls,
            gains=gains,
            peak_memory=stats.peak_memory,
            tv_bound=row.tv_bound,
            entropy=row.entropy,
            nll=row.nll,
            acceptance=stats.acceptance,
            grid=_grid(medium, row.tokens),
            length=medium.seconds if isinstance(medium, AudioClip) else None,
        )
        samples.append(sample)
    return samples


def _grid(medium: Medium, tokens: int) -> int | None:
    """Tokens per row of an image whose tokens are a grid of its proportions."""
    if isinstance(medium, AudioClip):
        return None
    width = round((tokens * medium.width / medium.height) ** 0.5)
    return width if width and width * round(width * medium.height / medium.width) == tokens else None
