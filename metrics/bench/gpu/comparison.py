"""Predicted against measured seconds of the steps in a record of `mmspec bench gpu`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


def records_of(record: Mapping[str, Any], part: str) -> list[Mapping[str, Any]]:
    """The records of a part that have no error."""
    return [one for one in record["parts"].get(part, {}).get("records", ()) if "error" not in one]


def compared(record: Mapping[str, Any]) -> list[Compared]:
    """All steps of a record that were both predicted and measured, in the order of measurement."""
    predicted = {_case(one): one for one in records_of(record, "predicted")}
    found = []
    for one in records_of(record, "steps"):
        other = predicted.get(_case(one))
        if other is not None:
            device = one["device"]
            seconds = one["wall"] if device is None else device
            found.append(Compared(*_case(one), other["seconds"], seconds, device is not None))
    return found


def _case(one: Mapping[str, Any]) -> tuple[str, int, int]:
    name = f"{one['model']}, depth decoder" if one.get("part") == "depth" else one["model"]
    return name, one["rows"], one["width"]
