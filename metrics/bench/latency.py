"""Latency of streamed speech: the seconds until the first audio of each recipe."""

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
    """Seconds until the first audio of a text, in absolute terms and relative to plain decoding.

    Attributes:
        recipe: Its name with its knobs.
        seconds: Over all texts and repeats.
        share: Ratio to plain decoding's seconds, the median over the texts of each repeat.
    """

    recipe: str
    seconds: Spread
    share: Spread


def first_audio(
    pipe: Any, texts: Sequence[str], recipes: Sequence[Recipe], *, repeats: int, seed: int, sampling: Mapping[str, Any]
) -> list[FirstAudio]:
    """Streams every text by every recipe up to its first chunk, in turns, after one round that is not timed.

    Args:
        pipe: A pipeline with `stream`, such as `mmspec.audio.pipeline.SpeechPipeline`.
        texts: The prompts.
        recipes: Compared with plain decoding.
        repeats: Timed rounds over the texts.
        seed: Of the first text; later texts get later seeds.
        sampling: Further arguments of `stream`.
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


def latency_table(latencies: Sequence[FirstAudio]) -> str:
    """One line per recipe, in Markdown: medians, with the smallest and the largest in brackets."""
    lines = ["| recipe | first audio, s | ratio to plain |", "| --- | ---: | ---: |"]
    for latency in latencies:
        cells = (spread.text(3) for spread in (latency.seconds, latency.share))
        lines.append(f"| {latency.recipe} | {' | '.join(cells)} |")
    return "\n".join(lines)
