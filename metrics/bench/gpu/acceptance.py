"""What windows give: acceptance rates of their slots, or measured tokens per call, from records of bench or eval."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.errors import ArgumentError
from mmspec.files.documents import read_json
from mmspec.metrics.bench.gpu.outer_passes import Passes
from mmspec.metrics.bench.gpu.prediction import tokens_per_window
from mmspec.recipes import Recipe, parse
from mmspec.ways_to_draft import networks as all_networks

# Ways of drafting that run no network: tokens per call are all that they cost.
WITHOUT_NETWORK = ("table", "tree-table", "recycle", "stand", "retrieval", "sjd", "scd")
_STEPS = 40  # of the bisection


@dataclass(frozen=True)
class MeasuredRecipe:
    """A row of a record.

    Attributes:
        recipe: The recipe.
        outer_head: Whether its refresh by the outer layers used an outer head.
    """

    recipe: Recipe
    outer_head: bool

    @property
    def title(self) -> str:
        """The recipe, and whether it used an outer head."""
        return f"{self.recipe} with an outer head" if self.outer_head else str(self.recipe)

    @property
    def passes(self) -> Passes | None:
        """The passes of its refresh by the outer layers; None if it has none."""
        knobs = self.recipe.knobs
        if knobs.get("refresh") != "outer":
            return None
        return Passes(int(knobs["passes"]), int(knobs["layers"]) or 2, self.outer_head)


def read_acceptance(text: str, recipe: str | None) -> list[float]:
    """The acceptance rate of each slot; later slots have that of the last one.

    Args:
        text: Rates from 0 to 1, separated by commas, or the path of a record.
        recipe: The row of a record; None for the first one with drafts.

    Raises:
        ArgumentError: If it is neither, or the record has no such row.
    """
    try:
        rates = [float(piece) for piece in text.split(",")]
    except ValueError:
        return _of_record(Path(text), recipe)
    if not all(0 <= rate <= 1 for rate in rates):
        raise ArgumentError(f"--acceptance: {text!r} must be rates from 0 to 1, or a JSON record")
    return rates


def read_rows(folders: str) -> dict[MeasuredRecipe, float]:
    """The measured tokens per call of each recipe with drafts, in order; of equal recipes the first one counts.

    Recipes whose window or tree is chosen while decoding are left out: the width of their calls is not recorded.

    Args:
        folders: Folders of `mmspec eval` or records of `mmspec bench`, separated by commas.

    Raises:
        ArgumentError: If one of them is no such folder or record, or if no recipe is left.
    """
    found = dict[MeasuredRecipe, float]()
    for name in folders.split(","):
        path = Path(name)
        try:
            record = read_json(path / "results.json" if path.is_dir() else path, "--results")
            drafter = record.get("config", {}).get("drafter") is not None
            for row in record["rows"]:
                recipe = parse(row["recipe"])
                tokens = row["speed"]["tokens_per_call"]["value"] if "speed" in row else row["tokens_per_call"]
                if recipe.info.drafts and not (recipe.auto or recipe.auto_branch):
                    alone = recipe.knobs.get("refresh") == "outer" and recipe.knobs["layers"] in (0, 2)
                    found.setdefault(MeasuredRecipe(recipe, drafter and alone), float(tokens))
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"--results: '{name[:200]}' is neither a folder of mmspec eval nor a record of mmspec bench"
            ) from error
    if not found:
        raise ArgumentError(f"--results: '{folders[:200]}' has no recipe with a fixed window")
    return found


def drafts_without_network(recipe: Recipe) -> bool:
    """Whether no network runs between two target calls."""
    networks = {recipe.knobs.get("start"), recipe.knobs.get("refresh")} & {*all_networks()}
    return recipe.parts[0] in WITHOUT_NETWORK and not networks


def _of_record(path: Path, recipe: str | None) -> list[float]:
    record: Any = None  # of what cannot be read
    with suppress(ArgumentError):
        record = read_json(path, "--acceptance")
    try:
        rows = record["rows"]
        found = [row for row in rows if (row["recipe"] == recipe if recipe else row["recipe"] != "plain")]
        if not found:
            known = ", ".join(dict.fromkeys(str(row["recipe"]) for row in rows))
            raise ArgumentError(f"--recipe: {str(path)!r} has no row {recipe or 'with drafts'!r}; it has {known[:200]}")
        row = found[0]
        if "speed" in row:  # of an evaluation
            rates = [float(rate) for rate in row["speed"]["acceptance"] if rate is not None]
            if not rates:
                raise ArgumentError(f"--acceptance: the row {row['recipe']!r} of {str(path)!r} has no drafts")
            return rates
        return [_rate(float(row["tokens_per_call"]), parse(row["recipe"]).window)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"--acceptance: {str(path)!r} is neither rates from 0 to 1 nor a record of mmspec bench or mmspec eval"
        ) from error


def _rate(tokens: float, window: int) -> float:
    """The rate at which windows give so many tokens on average, if it is the same in all slots."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_window([middle], window) < tokens else (low, middle)
    return low


def as_text(rates: Sequence[float]) -> str:
    """The rates of the first slots, for tables."""
    shown = ", ".join(f"{rate:.2f}" for rate in rates[:4])
    return f"{shown}, ..." if len(rates) > 4 else shown
