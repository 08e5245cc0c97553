"""Which prompts lose, which words stand in them, and the worst pairs of plain decoding and a recipe side by side."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmspec.errors import MMSpecError
from mmspec.media.images import read_image
from mmspec.metrics.comparisons import compare_all
from mmspec.metrics.evaluation.journal import find_sample
from mmspec.metrics.evaluation.media import is_audio
from mmspec.metrics.evaluation.scores import SampleScores, read_scores
from mmspec.metrics.report.grid import grid, number_cell, rounded
from mmspec.metrics.report.markup import Element, image, recording
from mmspec.metrics.report.samples import AUDIO_BYTES, Budget, embedded_image
from mmspec.metrics.report.scales import higher_is_better, is_share
from mmspec.metrics.report.style import RAMP

PROMPTS = 12  # in the table of prompts
PAIRS, PER_RECIPE = 8, 2  # worst pairs shown, and of one recipe
WORDS = 10  # with the largest differences
LEAST = 8  # prompts with a word, and without, for the word to be compared

Record = Mapping[str, Any]
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Losses:
    """What each sample of each recipe lost against plain decoding's sample of the same prompt and seed.

    Attributes:
        by_recipe: For each recipe but plain, float64 [N], positive where it is worse.
        relaxed: The recipes among them that do not keep the distribution.
    """

    metric: str
    by_recipe: dict[str, Array]
    relaxed: list[str]

    def of_prompts(self, prompts: Sequence[str]) -> dict[str, Array]:
        """The mean over seeds of every prompt, float64 [P], prompts in order of their first occurrence."""
        index = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        where = np.array([index[prompt] for prompt in prompts])
        counts = np.bincount(where, minlength=len(index))
        return {recipe: np.bincount(where, loss, len(index)) / counts for recipe, loss in self.by_recipe.items()}


def losses_of(scores: SampleScores, relaxed: Sequence[str]) -> list[Losses]:
    """The losses by each metric that is better when higher, or when lower; shares of 1 first."""
    found = []
    for metric, by_recipe in scores.scores.items():
        better = higher_is_better(metric)
        if better is None or "plain" not in by_recipe:
            continue
        plain = np.array(by_recipe["plain"])
        sign = 1 if better else -1
        lost = {name: sign * (plain - np.array(values)) for name, values in by_recipe.items() if name != "plain"}
        known = [recipe for recipe in lost if recipe in relaxed]
        if known:
            found.append(Losses(metric, lost, known))
    return sorted(found, key=lambda losses: not is_share(losses.metric))


def prompts_that_lose(record: Record, folder: Path, budget: Budget) -> list[Element]:
    """The section of one run; empty without scores of single samples."""
    try:
        scores = read_scores(folder)
    except MMSpecError:
        return []
    if scores is None or not scores.prompts:
        return []
    found = losses_of(scores, [row["recipe"] for row in record["rows"] if not row["exact"]])
    if not found:
        return []
    parts = [
        Element("h2", "Which prompts lose", id="losses"),
        Element(
            "p",
            "The loss of each prompt against plain decoding, the mean over its seeds. Exact recipes lose on single "
            "prompts too, by chance: their columns are the noise that the others stand out from, or not.",
        ),
    ]
    for losses in found[:2]:
        parts += [_table(losses, scores), *_words(losses, scores)]
    seen = next((losses for losses in found if worst_pairs(losses)), None)
    return [*parts, *(() if seen is None else _pairs(seen, scores, folder, budget))]


def _unit(metric: str) -> tuple[float, str]:
    return (100.0, " in points") if is_share(metric) else (1.0, "")


def _table(losses: Losses, scores: SampleScores) -> Element:
    prompts = list(dict.fromkeys(scores.prompts))
    by_prompt = losses.of_prompts(scores.prompts)
    factor, unit = _unit(losses.metric)
    mean = np.mean([by_prompt[recipe] for recipe in losses.relaxed], 0)
    lines = []
    for i in np.argsort(-mean, kind="stable")[:PROMPTS]:
        cells = [number_cell(f"{factor * mean[i]:.3g}", float(mean[i]))]
        cells += [number_cell(f"{factor * lost[i]:.3g}", float(lost[i])) for lost in by_prompt.values()]
        lines.append(Element("tr", Element("th", prompts[i], scope="row", class_="words"), cells))
    title = f"Prompts that lose most {losses.metric}{unit}"
    heads = ["prompt", "mean of relaxed", *by_prompt]
    return Element("div", Element("h3", title), grid(heads, lines, title, ("prompt",)))


def word_effects(losses: Losses, prompts: Sequence[str]) -> list[tuple[str, dict[str, float], int]]:
    """Words whose prompts lose more, or less, than prompts without them.

    Returns:
        Each word with the difference of the mean loss of relaxed recipes and its 95 % interval, and the number of its
        prompts.
    """
    names = list(dict.fromkeys(prompts))
    by_prompt = losses.of_prompts(prompts)
    mean = np.mean([by_prompt[recipe] for recipe in losses.relaxed], 0)
    sets = [set(re.findall(r"\w+", name.lower())) for name in names]
    found = []
    for word in sorted(set().union(*sets)):
        has = np.array([word in words for words in sets])
        if min(has.sum(), (~has).sum()) < LEAST:
            continue
        a, b = mean[has], mean[~has]
        half = 1.96 * float(np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
        value = float(a.mean() - b.mean())
        found.append((word, {"value": value, "low": value - half, "high": value + half}, int(has.sum())))
    return found


def _words(losses: Losses, scores: SampleScores) -> list[Element]:
    effects = word_effects(losses, scores.prompts)
    if not effects:
        return []
    factor, unit = _unit(losses.metric)
    verdicts = [one.significant for one in compare_all([interval for _, interval, _ in effects])]
    ranked = sorted(zip(effects, verdicts, strict=True), key=lambda one: -abs(one[0][1]["value"]))
    kept = [f"{word} ({_signed(factor * e['value'])}, {n} prompts)" for (word, e, n), ok in ranked if ok][:WORDS]
    text = ", ".join(kept) if kept else "none that remains"
    return [
        Element(
            "p",
            f"Words whose prompts lose more or less {losses.metric}{unit} than prompts without them, after Holm's "
            f"correction for {len(effects)} words: {text}.",
        )
    ]


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '-'}{rounded(abs(value))}"


def worst_pairs(losses: Losses) -> list[tuple[str, int]]:
    """Recipe and index of the samples that lost most, a few of each relaxed recipe; none that lost nothing."""
    every = [
        (float(losses.by_recipe[recipe][i]), recipe, i) for recipe in losses.relaxed for i in _worst(losses, recipe)
    ]
    return [(recipe, i) for loss, recipe, i in sorted(every, key=lambda one: -one[0]) if loss > 0][:PAIRS]


def _worst(losses: Losses, recipe: str) -> list[int]:
    return [int(i) for i in np.argsort(-losses.by_recipe[recipe], kind="stable")[:PER_RECIPE]]


def _pairs(losses: Losses, scores: SampleScores, folder: Path, budget: Budget) -> list[Element]:
    """The worst pairs as cards: plain decoding's sample, the recipe's of the same seed, and where they differ."""
    cards = []
    for recipe, i in worst_pairs(losses):
        prompt, seed = scores.prompts[i], scores.seeds[i]
        paths = [find_sample(folder, name, prompt, seed) for name in ("plain", recipe)]
        if paths[0] is None or paths[1] is None:
            continue
        try:
            shown = _pair(paths[0], paths[1], recipe, prompt, budget)
        except MMSpecError:
            continue
        factor, unit = _unit(losses.metric)
        lost = rounded(factor * float(losses.by_recipe[recipe][i]))
        loss = f"{recipe} loses {lost}{unit.replace(' in', '')}, seed {seed}"
        cards.append(Element("div", Element("h3", prompt), Element("p", loss), shown, class_="card"))
    if not cards:
        return []
    return [
        Element("h3", f"The worst pairs by {losses.metric}"),
        Element(
            "p",
            "Plain decoding, the recipe from the same seed, and where they differ: dark where they agree, yellow where "
            "they differ most. A recipe that uses the random numbers in another way gives another image even if it "
            "keeps the distribution.",
        ),
        Element("div", cards, class_="lost"),
    ]


def _pair(plain: Path, other: Path, recipe: str, prompt: str, budget: Budget) -> Element:
    if is_audio(plain):
        size = plain.stat().st_size + other.stat().st_size
        if size > AUDIO_BYTES // PAIRS:
            return Element("p", "too long to be shown")
        players = ((path.read_bytes(), name) for path, name in ((plain, "plain"), (other, recipe)))
        return Element("div", (recording(data, f"{name}: {prompt}") for data, name in players))
    figures = [
        Element("figure", embedded_image(path, f"{name}: {prompt}", budget), Element("figcaption", name))
        for path, name in ((plain, "plain"), (other, recipe))
    ]
    a, b = read_image(plain), read_image(other)
    if a.shape == b.shape:
        shown = image(difference_map(a, b), f"difference of plain and {recipe}: {prompt}", class_="coarse")
        figures.append(Element("figure", shown, Element("figcaption", "difference")))
    return Element("div", figures, class_="pair")


def difference_map(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bytes:
    """A PNG of the mean absolute difference of the channels, from dark (none) to yellow (half the range or more).

    Args:
        a: uint8 [H, W, 3].
        b: uint8 [H, W, 3].
    """
    ramp = np.array(RAMP, dtype=np.float64)
    share = np.abs(a.astype(np.float64) - b).mean(-1) / 127.5
    where = np.minimum(share, 1.0) * (len(ramp) - 1)
    low = np.minimum(where.astype(int), len(ramp) - 2)
    pixels = ramp[low] + (where - low)[..., None] * (ramp[low + 1] - ramp[low])
    data = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(data, format="PNG", optimize=True)
    return data.getvalue()
