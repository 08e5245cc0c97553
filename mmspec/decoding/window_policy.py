"""How many tokens a call of the model checks: the interface of window policies, and the one of a fixed width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Committed:
    """What target calls have committed, and how long they took: all that a policy is told.

    Drafts after the committed tokens may be kept for the next window. They follow the distributions that they are
    tested with, given everything that was decided at the committed places: tokens, and whether they were drafts. What
    the tests of the kept drafts said is not among that: a policy that knew would keep the good ones
    (docs/architecture.md, "What a policy may know").

    Attributes:
        gained: Host int64 [rows], the tokens that each running row has gained, those with the fewest tokens first.
        progress: By how much the fewest tokens of a row have become more: a batch ends with its last row.
        seconds: Wall-clock seconds per target call.
        calls: The number of target calls.
        tested: How many of these tokens had a draft in their place.
        accepted: How many of them are that draft.
        together: Whether the rows advanced by the same number of tokens, see `WindowPolicy.together`.
    """

    gained: NDArray[np.int64]
    progress: float
    seconds: float
    calls: int = 1
    tested: int = 0
    accepted: int = 0
    together: bool = False

    @property
    def gain(self) -> float:
        """Tokens per target call of the quarter of the rows with the fewest, which a batch waits for."""
        return float(self.gained[: -(-len(self.gained) // 4)].mean()) / self.calls


class WindowPolicy(Protocol):
    """Chooses the width of each window, as a function of what it is told, of the request and of random numbers.

    Decoding is exact under every policy.
    """

    @property
    def learns(self) -> bool:
        """Whether `record` and `rest` are called."""
        ...

    def choose(self) -> int:
        """The width of the next window; 1 is a plain step without drafts."""
        ...

    def settled(self) -> int:
        """The best known width, for calls with fewer rows, which are not measured."""
        ...

    def next(self) -> int:
        """The width that `choose` will most likely give after the call in hand, not recorded yet; 0 if unknown.

        If it gives another one, what was begun with this width is given up, and the next call is not recorded.
        """
        ...

    def steps(self) -> int:
        """The number of plain steps to take if the width is 1."""
        ...

    def together(self) -> bool:
        """Whether the rows of the next window advance by the same number of tokens, that of the row with the fewest."""
        ...

    def record(self, width: int, committed: Committed) -> None:
        """Called after the target calls of a window with all rows that the policy is for.

        Args:
            width: The chosen width.
            committed: What they have committed.
        """
        ...

    def rest(self, width: int, committed: Committed) -> None:
        """Called after target calls that are not measured: some of the rows have finished, or the time is not theirs.

        Args:
            width: The width of the window, or 1.
            committed: What they have committed.
        """
        ...


@dataclass(frozen=True)
class FixedWindow:
    """A policy that always chooses the same width.

    Args:
        plain_steps: The number of plain steps to take at a time if the width is 1.
    """

    width: int
    plain_steps: int = 1
    learns: ClassVar[bool] = False

    def choose(self) -> int:
        return self.width

    def settled(self) -> int:
        return self.width

    def next(self) -> int:
        return self.width

    def steps(self) -> int:
        return self.plain_steps

    def together(self) -> bool:
        return False

    def record(self, width: int, committed: Committed) -> None:
        """It does not learn."""

    def rest(self, width: int, committed: Committed) -> None:
        """It does not learn."""


# Policies that measure, by recipe, batch size and whether guidance is on.
AdaptiveWindows = dict[tuple[str, int, bool], Any]

_WINDOWS: WeakKeyDictionary[object, AdaptiveWindows] = WeakKeyDictionary()


def adaptive_windows_of(model: object) -> AdaptiveWindows:
    """The policies of a model's earlier runs."""
    return _WINDOWS.setdefault(model, {})
