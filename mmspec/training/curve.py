"""The points of a training's curve, and the version of its record."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class CurvePoint:
    """A measurement of the drafter.

    Attributes:
        step: Number of updates before it.
        loss: Mean training loss since the previous point; None for the first.
        acceptance: Mean acceptance probability of each draft of a window on held-out prompts.
        tokens_per_call: Tokens per target call on held-out prompts.
    """

    step: int
    loss: float | None
    acceptance: list[float | None]
    tokens_per_call: float
