"""The results of an evaluation that has not ended, from its journal: speed and likelihood, without other metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.errors import ArgumentError, MMSpecError
from mmspec.metrics.evaluation.config import EvalConfig, read_config
from mmspec.metrics.evaluation.journal import Journal, SampleRecord
from mmspec.metrics.evaluation.quality import difference_of
from mmspec.metrics.evaluation.results import FILE, read_results
from mmspec.metrics.evaluation.schema import SCHEMA_VERSION
from mmspec.metrics.evaluation.speed import speed_of
from mmspec.metrics.metric import resample_mean
from mmspec.recipes import parse

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is.

    Attributes:
        record: What its samples say so far, in the form of results.json; None while there are too few.
        done: By recipe, the number of finished samples.
        total: Samples of each recipe when it has ended.
        finished: Whether its results were written.
    """

    record: Record | None
    done: Mapping[str, int]
    total: int
    finished: bool


def progress(folder: Path) -> Progress:
    """Reads a results folder, whether or not its evaluation has ended.

    Raises:
        ArgumentError: If the folder holds no evaluation.
    """
    try:
        config = read_config(folder)
    except ArgumentError:
        record = read_results(folder)  # results without their samples
        done = {row["recipe"]: row["speed"]["samples"] for row in record["rows"]}
        return Progress(record, done, max(done.values()), True)
    wanted = {(prompt, seed) for prompt in config.prompts for seed in config.seeds}
    by_recipe: dict[str, dict[tuple[str, int], SampleRecord]] = {recipe: {} for recipe in config.recipes}
    for (recipe, prompt, seed), sample in Journal(folder).read().items():
        if recipe in by_recipe and (prompt, seed) in wanted:
            by_recipe[recipe][prompt, seed] = sample
    done = {recipe: len(samples) for recipe, samples in by_recipe.items()}
    finished = min(done.values(), default=0) == len(wanted) and (folder / FILE).is_file()
    if finished:
        return Progress(read_results(folder), done, len(wanted), True)
    return Progress(_record(config, by_recipe), done, len(wanted), False)


def _record(config: EvalConfig, by_recipe: Mapping[str, Mapping[tuple[str, int], SampleRecord]]) -> Record | None:
    """A record of the samples that have a counterpart of plain decoding; None if no recipe has two of them."""
    plain = by_recipe.get("plain", {})
    rows = []
    for recipe, samples in by_recipe.items():
        shared = [key for key in samples if key in plain]
        if len(shared) < 2:
            continue
        mine, base = [samples[key] for key in shared], [plain[key] for key in shared]
        try:
            speed = speed_of(mine, base, None, config.batch)
        except MMSpecError:  # a sample without tokens, which the evaluation itself will report
            continue
        rows.append(
            {
                "recipe": recipe,
                "exact": parse(recipe).exact,
                "gate": None,
                "speed": asdict(speed),
                "quality": _likelihoods(config.metrics, mine, base, recipe != "plain"),
            }
        )
    if not rows:
        return None
    return {
        "schema_version": SCHEMA_VERSION,
        "config": config.to_dict(),
        "environment": {},
        "skipped": [],
        "rows": rows,
    }


def _likelihoods(
    metrics: Sequence[str], mine: Sequence[SampleRecord], plain: Sequence[SampleRecord], paired: bool
) -> dict[str, Any]:
    """The metrics that were measured while the samples were generated."""
    found: dict[str, Any] = {}
    for name in ("entropy", "nll"):
        if name not in metrics or any(getattr(s, name) is None for s in (*mine, *plain)):
            continue
        own, base = (resample_mean(np.array([getattr(s, name) for s in samples])) for samples in (mine, plain))
        difference = asdict(difference_of(own.minus(base))) if paired else None
        found[name] = {**asdict(own.interval()), "n": len(mine), "extractor": "", "difference": difference}
    return found
