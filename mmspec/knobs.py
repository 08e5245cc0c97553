"""Knobs: the settings of recipes and acceptance rules, with their ranges."""

from __future__ import annotations

from dataclasses import dataclass

from mmspec.errors import ArgumentError, did_you_mean

Value = int | float | str


@dataclass(frozen=True)
class Knob:
    """One setting: a number within bounds, or one of some words."""

    default: Value
    summary: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, where: str, value: Value) -> Value:
        """Checks a value, or reads it from a string. **Raises:** `ArgumentError` naming `where`, value and range."""
        allowed = f"one of {', '.join(self.choices)}" if self.choices else f"a number from {self.low} to {self.high}"
        wrong = ArgumentError(f"{where}={value} is not allowed; it must be {allowed}")
        if self.choices:
            if value not in self.choices:
                raise ArgumentError(f"{wrong}{did_you_mean(str(value), self.choices)}")
            return value
        try:
            number = type(self.default)(value)
        except (TypeError, ValueError, OverflowError):
            raise wrong from None
        if isinstance(value, float) and number != value:
            raise wrong
        assert self.low is not None and self.high is not None and not isinstance(number, str)
        if not self.low <= number <= self.high:
            raise wrong
        return number
