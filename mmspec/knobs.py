"""Knobs: the settings of recipes and acceptance rules, with their ranges."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from numbers import Number

from mmspec.errors import ArgumentError, did_you_mean

LARGEST = 32  # the widest window that `window=auto` chooses, and the largest tree of `branch=auto` with its root
BY_MODEL = "default"  # the window that `mmspec.decoding.default_window` has for the model
DEEPEST = 8  # the greatest depth of trees of `branch=auto`

Value = int | float | str


@dataclass(frozen=True)
class Knob:
    """One setting: a number within bounds, or one of several words; if it has both, either.

    Attributes:
        default: The default value. Numbers have its type; if it is a word, that of `low`.
        summary: One line.
        low: The least number; None if only words are allowed.
        high: The largest number.
        choices: The allowed words.
    """

    default: Value
    summary: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, where: str, value: Value) -> Value:
        """Checks a value, or parses it from a string.

        Args:
            where: The name of the knob, for the message.

        Raises:
            ArgumentError: If the value is not allowed.
        """
        words = f"one of {', '.join(self.choices)}" if self.choices else ""
        numbers = "" if self.low is None else f"a number from {self.low} to {self.high}"
        allowed = " or ".join(filter(None, (numbers, words)))
        wrong = f"{where}={value} is not allowed; it must be {allowed}"
        if isinstance(value, str) and value in self.choices:
            return value
        if self.low is None:
            raise ArgumentError(f"{wrong}{did_you_mean(str(value), self.choices)}")
        try:
            number = type(self.low if isinstance(self.default, str) else self.default)(value)
        except (TypeError, ValueError, ArithmeticError):
            raise ArgumentError(wrong) from None
        given: object = value
        # int() also takes the fraction off a number, and reads numbers of types that compare with nothing.
        if isinstance(given, bool) or not isinstance(given, (str, Number)):
            raise ArgumentError(wrong)
        if isinstance(given, Number) and operator.ne(number, given):
            raise ArgumentError(wrong)
        assert self.high is not None
        if not self.low <= number <= self.high:
            raise ArgumentError(wrong)
        return number


@dataclass(frozen=True)
class Branching(Knob):
    """The shape of a tree: the number of children of an entry by depth, as in `4/2/1`, or a word of `choices`.

    It has at most `high` nodes in all.
    """

    def read(self, where: str, value: Value) -> Value:
        if isinstance(value, str) and value in self.choices:
            return value
        try:
            counts = branches(str(value))
        except ValueError:
            counts = []
        if not counts or min(counts) < 1 or len(counts) > 64 or nodes(counts) > (self.high or 0):
            raise ArgumentError(
                f"{where}={value} is not allowed; it must be children per depth such as {self.default}, "
                f"at most {self.high} nodes in all{''.join(f', or {word}' for word in self.choices)}"
            )
        return "/".join(map(str, counts))


def branches(text: str) -> list[int]:
    """Parses the number of children per depth from a text such as `4/2/1`.

    Raises:
        ValueError: If a number is not an integer.
    """
    return [int(count) for count in text.split("/")]


def nodes(counts: Sequence[int]) -> int:
    """The number of nodes of a tree, from the number of children of an entry by depth."""
    return sum(prod(counts[: depth + 1]) for depth in range(len(counts)))
