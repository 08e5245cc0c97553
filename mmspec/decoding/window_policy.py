"""How many tokens a call of the model checks: the interface of window policies, and the one of a fixed width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class WindowPolicy(Protocol):
    """Chooses the width of each window."""

    def choose(self) -> int:
        """The width of the next window; 1 is a single step without drafts."""
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
        """The number of single steps to take if the width is 1."""
        ...

    def together(self) -> bool:
        """Whether the rows of the next window advance by the same number of tokens, that of the row with the fewest."""
        ...

    def record(self, width: int, seconds: float, gained: float, calls: int = 1, advanced: float | None = None) -> None:
        """Called after the target calls of a window with all rows that the policy is for.

        Args:
            width: The chosen width.
            seconds: Wall-clock seconds per target call.
            gained: Tokens that one of the slowest rows gained per target call, on average; if the rows advanced
                together, what all of them would have gained otherwise.
            calls: The number of target calls.
            advanced: Tokens that the rows advanced by, per target call; None if by what they gained.
        """
        ...

    def rest(self, width: int, seconds: float, calls: int = 1) -> None:
        """Called after target calls that are not recorded: some of the rows have finished, or the time is not theirs.

        Args:
            width: The width of the window, or 1.
            seconds: Wall-clock seconds per target call.
            calls: The number of target calls.
        """
        ...


@dataclass(frozen=True)
class FixedWindow:
    """A policy that always chooses the same width.

    Args:
        width: The width.
        single_steps: The number of single steps to take at a time if the width is 1.
    """

    width: int
    single_steps: int = 1

    def choose(self) -> int:
        return self.width

    def settled(self) -> int:
        return self.width

    def next(self) -> int:
        return self.width

    def steps(self) -> int:
        return self.single_steps

    def together(self) -> bool:
        return False

    def record(self, width: int, seconds: float, gained: float, calls: int = 1, advanced: float | None = None) -> None:
        pass

    def rest(self, width: int, seconds: float, calls: int = 1) -> None:
        pass
