"""How long a stream of speech is waited for: the seconds until its first sound, recipe by recipe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mmspec.metrics.bench.recipes import BASELINE, Spread
from mmspec.recipes import Recipe, parse


@dataclass(frozen=True)
class FirstAudio:
    """Seconds until the first sound of a text, and how they compare with plain decoding's.

    Attributes:
        seconds: Over all texts and repeats.
        share: Of plain decoding's, a median over the texts of each repeat.
    """

    recipe: str
    seconds: Spread
    share: Spread


def first_audio(
    pipe: Any, texts: Sequence[str], recipes: Sequence[Recipe], *, repeats: int, seed: int, sampling: Mapping[str, Any]
) -> list[FirstAudio]:
    """Streams every text by every recipe up to its first chunk, in turns, after one round that is not timed.

    Args:
        pipe: With `stream`, as `mmspec.audio.pipeline.SpeechPipeline` has it.
        sampling: What is passed on to it.
    """
    baseline = parse(BASELINE)
    chosen = list({str(recipe): recipe for recipe in [baseline, *recipes]}.values())
    seconds: dict[str, list[list[float]]] = {str(recipe): [] for recipe in chosen}
    for repeat in range(-1, repeats):
        taken: dict[str, list[float]] = {name: [] for name in seconds}
        for i, text in enumerate(texts[:1] if repeat < 0 else texts):
            turn = (repeat * len(texts) + i) % len(chosen)
            for recipe in chosen[turn:] + chosen[:turn]:
                start = time.perf_counter()
                chunks = pipe.stream(text, recipe=recipe, seed=seed + i, **sampling)
                next(chunks)
                taken[str(recipe)].append(time.perf_counter() - start)
                chunks.close()
        if repeat >= 0:
            for name, found in taken.items():
                seconds[name].append(found)
    plain = seconds[BASELINE]
    return [
        FirstAudio(
            name,
            Spread.of([s for found in runs for s in found]),
            Spread.of([median(a / b for a, b in zip(x, y, strict=True)) for x, y in zip(runs, plain, strict=True)]),
        )
        for name, runs in seconds.items()
    ]


def latency_table(waits: Sequence[FirstAudio]) -> str:
    """One line per recipe, in Markdown: medians, with the smallest and the largest in brackets."""
    lines = ["| recipe | first sound, s | of plain's |", "| --- | ---: | ---: |"]
    for wait in waits:
        cells = (f"{s.median:.3f} [{s.low:.3f}, {s.high:.3f}]" for s in (wait.seconds, wait.share))
        lines.append(f"| {wait.recipe} | {' | '.join(cells)} |")
    return "\n".join(lines)
