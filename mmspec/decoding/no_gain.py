"""Says, once for each text, which settings of a recipe cannot make decoding quicker."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from mmspec.decoding.default_window import weights
from mmspec.decoding.resources import ChosenRecipe
from mmspec.decoding.target import Target

log = logging.getLogger(__name__)


def tell_of_trees(recipe: ChosenRecipe, target: Target) -> None:
    """Logs that a tree saves calls alone, where calls are paid by the token; enumerated targets have no parameters."""
    if target.device.type == "cpu" and parameters(target):
        _tell(f"recipe {recipe.name!r} drafts trees, which save calls; on a CPU a chain of drafts takes less time")


def tell_of_draft_models(recipe: ChosenRecipe, target: Target, draft_model: Target) -> None:
    """Logs that a draft model is as large as its target."""
    size, own = parameters(draft_model), parameters(target)
    if own and size >= own:
        _tell(
            f"recipe {recipe.name!r} has a draft model of {size:,} parameters for a model of {own:,}; drafts that "
            "cost as much as tokens save no time"
        )


def tell_of_steps(recipe: ChosenRecipe, head: Any, draft_head: Any) -> None:
    """Logs that the head takes no more steps than when it drafts; heads tell by their attribute `steps`."""
    whole, few = getattr(head, "steps", None), getattr(draft_head, "steps", None)
    if whole is not None and few is not None and few >= whole:
        _tell(
            f"recipe {recipe.name!r} drafts with {few} of the head's {whole} step{'s' * (whole != 1)}; drafts that "
            "cost as much as tokens save no time"
        )


def parameters(target: Any) -> int:
    """Parameters of a target; 0 if it has none."""
    return sum(weight.numel() for weight in weights(target))


@cache
def _tell(text: str) -> None:
    log.warning(text)
