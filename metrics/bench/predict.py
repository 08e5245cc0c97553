"""How much faster a model becomes: short runs of `scd` and `sjd` at a few windows, times what a window costs here.

Bits per token do not tell what a window gains. How far a changed token moves the distributions after it decides that,
and a short run on the model itself measures it: for Jacobi methods a wide window says nothing about narrow ones, whose
drafts are younger. So some widths are run on every sample, and those between them are interpolated.

Definitions:

- **measured**: tokens over target calls of the samples, several per call: a row's tokens do not depend on the others.
  Other samples give other numbers: the interval is a 95 % bootstrap over samples, too narrow for very few of them.
- **predicted**: at a width between those that were run, the logarithm of tokens per call is taken as a polynomial of
  the logarithm of the width.
- **cost**: seconds of a target call with everything around it over those of plain decoding of the same sample, at
  batch 1; the median of some samples, without the first, which warms up.
- **speed-up** is always a prediction: tokens per call over the cost. Its interval has the least and the largest cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from inspect import signature
from statistics import median
from typing import Any

import numpy as np

from mmspec.decoding.stats import Stats
from mmspec.errors import ArgumentError
from mmspec.metrics.bench.pipe import Pipe
from mmspec.metrics.bench.recipes import BASELINE
from mmspec.metrics.bootstrap import bootstrap
from mmspec.metrics.estimate import Interval
from mmspec.recipes import Recipe, parse

PLAIN = parse(BASELINE)
WIDTHS = (4, 8, 16, 32, 64)  # every other one is run, and the last
TIMED = 4  # samples that are timed one by one
PAYS = 1.05  # predicted speed-up, at the lower end of its interval, below which speculation is not worth its while
FEW_TESTS = 20  # tested drafts of a slot below which its acceptance says nothing


@dataclass(frozen=True)
class Prediction:
    """What a recipe is expected to gain.

    Attributes:
        recipe: Its name with its knobs.
        measured: Whether `tokens_per_call` was measured, and not interpolated.
        tokens_per_call: With its interval.
        speedup: Predicted, with its interval.
    """

    recipe: str
    measured: bool
    tokens_per_call: Interval
    cost: float
    speedup: Interval


@dataclass(frozen=True)
class Report:
    """The predictions for a model.

    Attributes:
        samples: Samples of plain decoding, and of each width that was run.
        tokens: Tokens of a sample, the mean.
        bits_per_token: Entropy of the target distribution; None if the model does not measure it.
        plain_seconds: Seconds per token of plain decoding.
        acceptance: By recipe, the share of accepted drafts in each slot of the widest window that was run; None where
            few were tested.
        rows: All predictions.
        best: The row to use; None if no recipe pays.
        refused: By recipe, why the model cannot run it.
    """

    samples: int
    tokens: float
    bits_per_token: float | None
    plain_seconds: float
    acceptance: dict[str, list[float | None]]
    rows: list[Prediction]
    best: Prediction | None
    refused: dict[str, str]


def predict(
    pipe: Pipe,
    prompts: Sequence[str],
    recipes: Sequence[Recipe],
    *,
    batch: int = 8,
    seed: int = 0,
    sampling: Mapping[str, Any] = {},
    on_run: Callable[[str], None] = lambda name: None,
) -> Report:
    """Predicts what recipes gain on a model.

    Args:
        pipe: Generates images or audio.
        prompts: One per sample, at least two.
        recipes: Those with a knob `window` are predicted by width; of others, that very recipe is run.
        batch: Samples per call where only tokens and calls are counted.
        seed: Of the first sample; later ones get later seeds.
        sampling: Sampling parameters of the call.
        on_run: Called with the name of a recipe before each call.

    Raises:
        ArgumentError: If the model can run none of the recipes, or there are fewer than two prompts.
    """
    if len(prompts) < 2:
        raise ArgumentError(f"prompts has {len(prompts)} entries; there must be at least 2, or there is no interval")

    # Pixels are not measured, and some models that load have no decoder for them.
    tokens: dict[str, Any] = {"output_type": "latent"} if "output_type" in signature(pipe).parameters else {}

    def run(recipe: Recipe, first: int, count: int, measure_entropy: bool = False) -> Stats:
        on_run(str(recipe))
        some = list(prompts[first : first + count])
        seeds = [seed + first + i for i in range(len(some))]
        # Some pipelines lack the argument.
        asked: dict[str, Any] = {"measure_entropy": True} if measure_entropy else {}
        stats: Stats = pipe(some, recipe=recipe, seed=seeds, **tokens, **asked, **sampling).stats
        return stats

    def count(recipe: Recipe, measure_entropy: bool = False) -> Stats:
        """The statistics of all samples."""
        calls = (run(recipe, first, batch, measure_entropy) for first in range(0, len(prompts), batch))
        return reduce(lambda one, other: one.followed_by(other), calls)

    try:
        plain = count(PLAIN, measure_entropy=True)
    except ArgumentError as error:
        if "measure_entropy" not in str(error):
            raise
        plain = count(PLAIN)
    length = round(plain.tokens / len(prompts))
    counted, refused = dict[Recipe, dict[int, Stats]](), dict[str, str]()
    for recipe in recipes:
        try:
            widths = (each for each in at_widths(recipe, length) if not _between(each, length))
            counted[recipe] = {each.window: count(each) for each in widths}
        except ArgumentError as error:
            refused[str(recipe)] = str(error)
    if not counted:
        names = ",".join(refused)
        raise ArgumentError(f"recipes={names} is not possible for this model: {'; '.join(refused.values())}")
    timed = [PLAIN, *(each for recipe in counted for each in at_widths(recipe, length))]
    seconds: dict[Recipe, list[float]] = {recipe: [] for recipe in timed}
    for sample in range(TIMED):
        for recipe in timed:  # in turns, so that a machine that slows down does so for all of them
            stats = run(recipe, sample % len(prompts), 1)
            seconds[recipe].append(stats.seconds / stats.target_calls)
    costs = {
        recipe: [call / step for call, step in zip(several[1:], seconds[PLAIN][1:], strict=True)]
        for recipe, several in seconds.items()
    }
    rows = [_row(each, found, costs[each]) for recipe, found in counted.items() for each in at_widths(recipe, length)]
    paying = [row for row in rows if row.speedup.low >= PAYS]
    return Report(
        samples=len(prompts),
        tokens=plain.tokens / len(prompts),
        bits_per_token=plain.entropy,
        plain_seconds=median(seconds[PLAIN][1:]),
        acceptance={
            str(at_widths(recipe, length)[-1]): _acceptance(found[max(found)]) for recipe, found in counted.items()
        },
        rows=rows,
        best=max(paying, key=lambda row: row.speedup.value, default=None),
        refused=refused,
    )


def at_widths(recipe: Recipe, length: int) -> list[Recipe]:
    """A recipe at the widths that a sequence of some length has room for; itself if it has no knob `window`."""
    if "window" not in recipe.knobs:
        return [recipe]
    widths = [width for width in WIDTHS if width < 2 * length] or WIDTHS[:1]
    return [recipe.with_knobs(window=width) for width in widths]


def _between(recipe: Recipe, length: int) -> bool:
    """Whether a recipe's width is interpolated."""
    return recipe in at_widths(recipe, length)[1:-1:2]


def calls(recipes: Sequence[Recipe], samples: int, batch: int) -> int:
    """The number of calls that `predict` makes for long sequences."""
    widths = sum(len(WIDTHS) if "window" in recipe.knobs else 1 for recipe in recipes)
    counted = sum(len(WIDTHS) - len(WIDTHS[1:-1:2]) if "window" in recipe.knobs else 1 for recipe in recipes)
    return -(-samples // batch) * (1 + counted) + TIMED * (1 + widths)


def interpolated(width: int, known: Mapping[int, float]) -> float:
    """Tokens per call at a width, from those at others; between those of the two that are next to it."""
    if width in known:
        return known[width]
    widths = sorted(known)
    curve = np.polyfit(np.log2(widths), [np.log(known[each]) for each in widths], len(widths) - 1)
    near = known[max(each for each in widths if each < width)], known[min(each for each in widths if each > width)]
    return float(np.clip(np.exp(np.polyval(curve, np.log2(width))), min(near), max(near)))


def _row(recipe: Recipe, found: Mapping[int, Stats], costs: Sequence[float]) -> Prediction:
    """The prediction for a recipe, from the statistics of those widths that were run."""
    counts = {width: np.array([(row.tokens, row.target_calls) for row in stats.rows]) for width, stats in found.items()}

    def gained(samples: Any) -> float:
        sums = {width: each[samples].sum(0) for width, each in counts.items()}
        return interpolated(recipe.window, {width: float(tokens / calls) for width, (tokens, calls) in sums.items()})

    interval = bootstrap(gained, min(len(each) for each in counts.values()))
    cost = median(costs)
    speedup = Interval(interval.value / cost, interval.low / max(costs), interval.high / min(costs))
    return Prediction(str(recipe), recipe.window in found, interval, cost, speedup)


def _acceptance(stats: Stats) -> list[float | None]:
    """The share of accepted drafts by slot."""
    slots = zip(stats.acceptance, stats.tested, strict=True)
    return [share if tested >= FEW_TESTS else None for share, tested in slots]
