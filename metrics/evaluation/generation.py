"""Drawing the samples of an evaluation: every recipe for every prompt and seed, each written down when finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from PIL import Image

from mmspec.errors import ArgumentError
from mmspec.metrics.evaluation.config import Config
from mmspec.metrics.evaluation.journal import Journal, Key, Sample, image_path
from mmspec.metrics.evaluation.processes import Processes
from mmspec.metrics.pipe import Output, Pipe
from mmspec.recipes import parse
from mmspec.vision.png import write_png

OTHER_SEEDS = 2**40  # added to the seeds of the plain samples that serve as reference: nobody asks for those
Unit = tuple[str, int]  # prompt, seed


def units(config: Config) -> list[Unit]:
    """Every prompt with every seed, in a fixed order."""
    return list(product(config.prompts, config.seeds))


def keys(config: Config, needs_reference: bool) -> list[list[Key]]:
    """The samples of each unit; with the plain one of another seed where distances need a reference."""
    found = []
    for prompt, seed in units(config):
        own: list[Key] = [(recipe, prompt, seed) for recipe in config.recipes]
        if needs_reference:
            own.append(("plain", prompt, seed + OTHER_SEEDS))
        found.append(own)
    return found


def generate(
    pipe: Pipe,
    config: Config,
    folder: Path,
    wanted: Sequence[Sequence[Key]],
    processes: Processes = Processes(),  # noqa: B008 (frozen)
    on_sample: Callable[[Key], None] | None = None,
) -> None:
    """Draws this process's share of what is not finished yet, one picture per call.

    Recipes take turns on each prompt and seed, in rotating order, so that a machine that speeds up or slows down does
    so for all of them. The first call of each is made twice and timed the second time.

    **Arguments:**

    - `wanted`: what `keys` gives.
    - `on_sample`: called for each sample of the share, finished ones included.
    """
    journal = Journal(folder, processes.rank)
    done = journal.read()
    warm: set[str] = set()
    for i, own in processes.share(list(enumerate(wanted))):
        turn = i % len(own)
        for key in [*own[turn:], *own[:turn]]:
            if key not in done:
                if key[0] not in warm:
                    _draw(pipe, config, key)
                    warm.add(key[0])
                start = time.perf_counter()
                out = _draw(pipe, config, key)
                journal.append(_write(folder, key, out, time.perf_counter() - start))
            if on_sample is not None:
                on_sample(key)


def _draw(pipe: Pipe, config: Config, key: Key) -> Output:
    recipe, prompt, seed = key
    return pipe([prompt], recipe=parse(recipe), seed=seed, measure_entropy=config.entropy, **config.sampling)


def _write(folder: Path, key: Key, out: Output, seconds: float) -> Sample:
    """The picture goes to the disk before the line that says it is there."""
    recipe, prompt, seed = key
    picture = out.images[0]
    if not isinstance(picture, Image.Image):
        raise ArgumentError(f"the model gives {type(picture).__name__}, not pictures; it has no tokenizer")
    path = image_path(*key)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    write_png(picture.convert("RGB"), folder / path, {"prompt": prompt, "seed": str(seed), "recipe": recipe})
    stats = out.stats
    return Sample(
        recipe=recipe,
        prompt=prompt,
        seed=seed,
        image=path.as_posix(),
        seconds=seconds,
        parts=stats.seconds_by_part,
        nfe=stats.nfe,
        tokens=stats.tokens,
        row_calls=stats.tokens / stats.tokens_per_call,
        peak_memory=stats.peak_memory,
        tv_bound=stats.tv_bound,
        entropy=stats.entropy,
        acceptance=stats.acceptance,
    )
