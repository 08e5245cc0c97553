"""A statistic of samples with its confidence interval and its paired difference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from mmspec.errors import ArgumentError
from mmspec.metrics.values import Real


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its confidence interval."""

    value: Real
    low: Real
    high: Real


class Estimate(ABC):
    """A statistic of all samples, from which intervals follow.

    Attributes:
        value: Of all samples.
    """

    value: float

    @abstractmethod
    def interval(self, level: float = 0.95) -> Interval:
        """The confidence interval of this level.

        Raises:
            ArgumentError: If `level` is not strictly between 0 and 1.
        """

    @abstractmethod
    def minus(self, other: Self) -> Self:
        """The paired difference from an estimate of samples of the same prompts and seeds."""


def check_level(level: float) -> None:
    """Checks the level of an interval.

    Raises:
        ArgumentError: If it is not strictly between 0 and 1.
    """
    if not 0 < level < 1:
        raise ArgumentError(f"level={level} is not allowed; it must lie between 0 and 1")
