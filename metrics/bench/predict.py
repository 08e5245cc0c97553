"""How much faster a model becomes: short runs of `scd` and `sjd` at a few windows, times what a window costs here.

Bits per token do not tell what a window gains. How far a changed token moves the distributions after it decides that,
and a short run on the model itself measures it: for Jacobi methods a wide window says nothing about narrow ones, whose
drafts are younger. So some widths are run on every sample, and those between them are interpolated.

Definitions:

- **measured**: tokens over target calls of the samples. Another sample gives another number: the interval is a 95 %
  bootstrap over samples, and too narrow for very few of them.
- **predicted**: at a width between those that were run, the logarithm of tokens per call is taken as a polynomial of
  the logarithm of the width.
- **cost**: seconds of a target call with everything around it over those of plain decoding, at batch 1; the median over
  samples, without the first, which warms up.
- **speed-up** is always a prediction: tokens per call over the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
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
WIDTHS = (4, 8, 16, 32, 64)
PAYS = 1.05  # predicted speed-up, at the lower end of its interval, below which speculation is not worth its while
FEW_TESTS = 20  # tested drafts of a slot below which its acceptance says nothing


@dataclass(frozen=True)
class Prediction:
    """What a recipe is expected to gain.

    Attributes:
        recipe: Its name with its knobs.
        measured: Whether `tokens_per_call` was measured, and not interpolated.
        tokens_per_call: With its interval.
        cost: See the module's docstring.
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
        samples: Plain samples, and samples of each width that was run.
        tokens: Tokens of a plain sample, the mean.
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
    seed: int = 0,
    sampling: Mapping[str, Any] = {},
    on_run: Callable[[str], None] = lambda name: None,
) -> Report:
    """Predicts what recipes gain on a model.

    Args:
        pipe: Generates images or audio.
        prompts: One per sample, at least two; the first warms up.
        recipes: Those with a knob `window` are predicted by width; of others, that very recipe is run.
        seed: Of the first sample; later ones get later seeds.
        sampling: Sampling parameters of the call.
        on_run: Called with the name of a recipe before each of its runs.

    Raises:
        ArgumentError: If the model can run none of the recipes, or there are fewer than two prompts.
    """
    if len(prompts) < 2:
        raise ArgumentError(f"prompts has {len(prompts)} entries; there must be at least 2, as the first one warms up")
    seeds = [seed + i for i in range(len(prompts))]

    def run(recipe: Recipe, sample: int) -> Stats:
        on_run(str(recipe))
        stats: Stats = pipe([prompts[sample]], recipe=recipe, seed=seeds[sample], **sampling).stats
        return stats

    bits = pipe(list(prompts), recipe=PLAIN, seed=seeds, measure_entropy=True, **sampling).stats.entropy
    plain = [run(PLAIN, 0)]
    length, found, refused = plain[0].tokens, dict[Recipe, list[Stats]](), dict[str, str]()
    for recipe in recipes:
        try:
            found |= {each: [run(each, 0)] for each in at_widths(recipe, length)}
        except ArgumentError as error:
            refused[str(recipe)] = str(error)
    if not found:
        names = ",".join(refused)
        raise ArgumentError(f"recipes={names} is not possible for this model: {'; '.join(refused.values())}")
    skipped = {each for recipe in recipes for each in at_widths(recipe, length)[1:-1:2]}
    for sample in range(1, len(prompts)):
        plain.append(run(PLAIN, sample))
        for recipe, runs in found.items():
            if sample == 1 or recipe not in skipped:  # of those between, only the cost is needed
                runs.append(run(recipe, sample))
    rows = []
    for recipe in recipes:
        wide = [each for each in at_widths(recipe, length) if each in found]
        rows += _rows(plain, {each: found[each] for each in wide}, skipped)
    best = max(rows, key=lambda row: row.speedup.value)
    return Report(
        samples=len(prompts),
        tokens=float(np.mean([stats.tokens for stats in plain])),
        bits_per_token=bits,
        plain_seconds=_cost(plain),
        acceptance={str(recipe): _acceptance(found[recipe]) for recipe in found if _is_widest(recipe, found)},
        rows=rows,
        best=best if best.speedup.low >= PAYS else None,
        refused=refused,
    )


def at_widths(recipe: Recipe, length: int) -> list[Recipe]:
    """A recipe at the widths that a sequence of some length has room for; itself if it has no knob `window`."""
    if "window" not in recipe.knobs:
        return [recipe]
    widths = [width for width in WIDTHS if width < 2 * length] or WIDTHS[:1]
    return [recipe.with_knobs(window=width) for width in widths]


def runs(recipes: Sequence[Recipe], samples: int) -> int:
    """The number of runs that `predict` makes of long sequences."""
    between = len(WIDTHS[1:-1:2])
    of_widths = (len(WIDTHS) - between) * samples + 2 * between
    return samples + sum(of_widths if "window" in recipe.knobs else samples for recipe in recipes)


def interpolated(width: int, known: Mapping[int, float]) -> float:
    """Tokens per call at a width, from those at others; between those of the two that are next to it."""
    if width in known:
        return known[width]
    widths = sorted(known)
    curve = np.polyfit(np.log2(widths), [np.log(known[each]) for each in widths], len(widths) - 1)
    near = known[max(each for each in widths if each < width)], known[min(each for each in widths if each > width)]
    return float(np.clip(np.exp(np.polyval(curve, np.log2(width))), min(near), max(near)))


def _rows(plain: Sequence[Stats], found: Mapping[Recipe, Sequence[Stats]], skipped: set[Recipe]) -> list[Prediction]:
    """The predictions for one recipe, from its runs at several widths."""
    run = {recipe.window: stats for recipe, stats in found.items() if recipe not in skipped}
    tokens = {width: np.array([each.tokens for each in stats]) for width, stats in run.items()}
    calls = {width: np.array([each.tokens / each.tokens_per_call for each in stats]) for width, stats in run.items()}
    rows = []
    for recipe, stats in found.items():

        def gained(chosen: Any, width: int = recipe.window) -> float:
            known = {w: float(tokens[w][chosen].sum() / calls[w][chosen].sum()) for w in run}
            return interpolated(width, known)

        interval, cost = bootstrap(gained, len(plain)), _cost(stats) / _cost(plain)
        speedup = Interval(*(value / cost for value in (interval.value, interval.low, interval.high)))
        rows.append(Prediction(str(recipe), recipe not in skipped, interval, cost, speedup))
    return rows


def _cost(runs: Sequence[Stats]) -> float:
    """Seconds of a target call; the first run warms up."""
    return median(stats.seconds / stats.target_calls for stats in runs[1:])


def _is_widest(recipe: Recipe, found: Mapping[Recipe, Any]) -> bool:
    return recipe.window == max(each.window for each in found if each.name == recipe.name)


def _acceptance(runs: Sequence[Stats]) -> list[float | None]:
    """The share of accepted drafts by slot."""
    stats = reduce(lambda one, other: one.followed_by(other), runs)
    return [
        share if tested >= FEW_TESTS else None for share, tested in zip(stats.acceptance, stats.tested, strict=True)
    ]
