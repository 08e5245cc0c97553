"""The scores of single samples in scores.json: which prompts lose, and by how much."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from mmspec import limits
from mmspec.errors import ArgumentError
from mmspec.files.documents import first_error
from mmspec.files.folders import open_inside, replacing_inside
from mmspec.metrics.values import Count, Real

FILE = "scores.json"
VERSION = 1


@dataclass(frozen=True)
class SampleScores:
    """The scores of the samples of an evaluation.

    Attributes:
        version: Of the file's format.
        prompts: Of each sample, equal for all recipes.
        seeds: Likewise.
        scores: By metric and recipe, one number per sample.
    """

    version: Literal[1]  # VERSION
    prompts: list[str]
    seeds: list[Count]
    scores: dict[str, dict[str, list[Real]]]

    @staticmethod
    def of(
        units: Sequence[tuple[str, int]], scores: Mapping[str, Mapping[str, Sequence[float] | None]]
    ) -> SampleScores:
        """The scores of samples of these prompts and seeds."""
        listed = {
            metric: {recipe: list(values or ()) for recipe, values in by_recipe.items()}
            for metric, by_recipe in scores.items()
        }
        return SampleScores(1, [prompt for prompt, _ in units], [seed for _, seed in units], listed)


def write_scores(scores: SampleScores, folder: Path) -> None:
    """Writes scores.json atomically, next to results.json."""
    with replacing_inside(folder, FILE) as partial:
        partial.write_text(json.dumps(asdict(scores), allow_nan=False) + "\n", encoding="utf-8")


def read_scores(folder: Path) -> SampleScores | None:
    """The scores in a results folder; None if it has none, as those of earlier versions.

    Raises:
        ArgumentError: If the file holds something else.
    """
    path = folder / FILE
    try:
        with open_inside(path) as file:
            content = file.read(limits.FILE_BYTES.value + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArgumentError(f"'{path}' cannot be read: {error.strerror or error}") from error
    limits.FILE_BYTES.check(f"'{path}'", len(content))
    try:
        found = _scores().validate_json(content, strict=True)
    except ValidationError as error:
        raise ArgumentError(f"'{path}' holds no scores of `mmspec eval`: {first_error(error)}") from None
    count = len(found.prompts)
    lengths = {len(values) for by_recipe in found.scores.values() for values in by_recipe.values()}
    if len(found.seeds) != count or lengths - {count}:
        raise ArgumentError(f"'{path}' holds no scores of `mmspec eval`: its lists differ in length")
    return found


@cache
def _scores() -> TypeAdapter[SampleScores]:
    return TypeAdapter(SampleScores)
