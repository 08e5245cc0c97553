"""The check that an exact recipe has to pass before a command prints its speed-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe
from mmspec.registry import RULES
from mmspec.ways_to_draft import RECIPES

if TYPE_CHECKING:
    from mmspec.testing.exactness import ExactnessResult, Verdict
    from mmspec.testing.latents import LatentExactnessResult

    Result = ExactnessResult | LatentExactnessResult

MODEL_ROWS = 64


@dataclass(frozen=True)
class ModelResult:
    """The samples of a recipe on a model against those of plain decoding.

    Attributes:
        ok: Whether they have one distribution, as far as the rows tell.
    """

    ok: bool


def gate(recipe: Recipe) -> Result:
    """Runs the distribution test of `mmspec check` on every kind of token that the recipe can draft.

    A rule for latents is checked on latents; any other recipe on tokens and, if it can draft columns of codes, on
    columns as well. A rule of another package is checked once more on tokens of a large vocabulary. First layers of a
    model are a draft model of their own, however many; the toys have few layers, so that a larger number is checked as
    the largest that they have.

    Returns:
        The result that failed, or the first one.
    """
    from mmspec.testing.columns import check_columns
    from mmspec.testing.exactness import check
    from mmspec.testing.latents import check_latents
    from mmspec.testing.toys import LAYERS

    if int(recipe.knobs.get("layers", 0)) >= LAYERS:
        recipe = recipe.with_knobs(layers=LAYERS - 1)
    if recipe.rule.continuous:
        return check_latents(recipe)
    result = check(recipe)
    if result.ok and is_foreign(recipe):
        from mmspec.testing.relabelled import check_relabelled

        relabelled = check_relabelled(recipe)
        result = result if relabelled.ok else relabelled
    if result.ok and recipe.info.supports("columns"):
        try:
            columns = check_columns(recipe)
        except ArgumentError:  # with these knobs the recipe is for tokens only, such as scd:start=table
            return result
        return result if columns.ok else columns
    return result


def gate_on(pipe: Any, prompt: str, batch: int) -> Callable[[Recipe], Verdict]:
    """`gate`, which also checks drafters and rules of other packages on a model.

    Args:
        pipe: The model.
        prompt: What is generated.
        batch: Rows per call.
    """

    def found(recipe: Recipe) -> Verdict:
        result = gate(recipe)
        return (
            check_on_model(recipe, pipe, prompt, batch)
            if result.ok and (is_foreign(recipe) or drafts_foreign(recipe))
            else result
        )

    return found


def is_foreign(recipe: Recipe) -> bool:
    """Whether the rule of a recipe is that of another package, which claims what the tests of mmspec do not cover."""
    return recipe.rule_name not in RULES


def drafts_foreign(recipe: Recipe) -> bool:
    """Whether the drafts of a recipe come from another package, which may report other probabilities than it has."""
    return recipe.parts[0] not in RECIPES


def check_on_model(recipe: Recipe, pipe: Any, prompt: str, batch: int) -> ModelResult:
    """Compares samples of a recipe with those of plain decoding, as `mmspec check -m` does.

    Args:
        recipe: An exact recipe.
        pipe: The model.
        prompt: What is generated, `MODEL_ROWS` times with either.
        batch: Rows per call.
    """
    from torch.nn.utils.rnn import pad_sequence

    from mmspec.cli.model_check.checks import plain_of
    from mmspec.cli.model_check.samples import ALARM, compare_samples
    from mmspec.cli.model_check.subject import subject_of

    subject = subject_of(pipe, prompt, 64)

    def samples(of: Recipe, seed: int) -> Any:
        starts = range(0, MODEL_ROWS, batch)
        calls = [subject.ours(of, greedy=False, rows=min(batch, MODEL_ROWS - n), seed=seed + n) for n in starts]
        return pad_sequence([row for made in calls for row in made.tokens], batch_first=True)

    try:
        result = compare_samples(samples(recipe, 0), samples(plain_of(recipe), 10**6))
    except (AttributeError, TypeError):  # pipelines of other packages need not return tokens
        return ModelResult(True)
    return ModelResult(result is None or result.p > ALARM)
