"""Builds what the knobs `start` and `refresh` name outside of the core."""

from __future__ import annotations

from typing import Any

from mmspec.arguments.returned import checked_call, has
from mmspec.decoding.resources import DraftingContext
from mmspec.drafters.recipe_info import Choice
from mmspec.environment.importing import resolve
from mmspec.errors import ArgumentError

START, REFRESH = "start", "refresh"
_MUST = {
    START: ("a mmspec.decoding.drafter.ContinuationDrafter", has("calls", "extend", "observe")),
    REFRESH: ("a mmspec.drafters.jacobi.CouplesToLayers", has("calls", "couple", "couple_ahead", "reads_ahead")),
}


def built_choice(knob: str, name: str, choice: Choice, context: DraftingContext) -> Any:
    """What a value of a knob stands for, for this kind of token.

    Args:
        knob: `START` or `REFRESH`.
        name: The value.
        choice: What is known of it.
        context: The recipe and the model.

    Raises:
        ArgumentError: If it is for another kind of token.
        PluginError: If its builder returns something else.
    """
    kind, (must, fits) = context.layout.kind, _MUST[knob]
    if kind not in choice.builders:
        raise ArgumentError(f"{knob}={name} is for {' and '.join(choice.builders)}; this model generates {kind}")
    builder = resolve(choice.builders[kind])
    return checked_call(f"the builder of {knob}={name}", builder, context, must=must, fits=fits)
