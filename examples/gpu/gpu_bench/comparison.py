"""Predicted against measured seconds of the steps in a record of a GPU day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_bench.records import records_of


@dataclass(frozen=True)
class Compared:
    """A step that was both predicted and measured.

    Attributes:
        model: Its name, with its part.
        rows: Rows.
        width: Tokens per row.
        predicted: Seconds.
        measured: Seconds on the device, or on the wall where the call was not captured.
        captured: Whether it was captured.
    """

    model: str
    rows: int
    width: int
    predicted: float
    measured: float
    captured: bool

    @property
    def ratio(self) -> float:
        """Measured over predicted; above 1 the device is slower than predicted."""
        return self.measured / self.predicted


def compared(record: Mapping[str, Any]) -> list[Compared]:
    """All steps of a record that were both predicted and measured, in the order of measurement."""
    predicted = {_case(one): one for one in records_of(record, "predicted")}
    found = []
    for one in records_of(record, "models"):
        other = None if "recipe" in one or "cudnn" in one else predicted.get(_case(one))
        if other is not None:
            device = one["device"]
            seconds = one["wall"] if device is None else device
            found.append(Compared(*_case(one), other["seconds"], seconds, device is not None))
    return found


def _case(one: Mapping[str, Any]) -> tuple[str, int, int]:
    name = f"{one['model']}, depth decoder" if one.get("part") == "depth" else one["model"]
    return name, one["rows"], one["width"]
