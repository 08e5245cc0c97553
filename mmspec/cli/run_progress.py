"""Progress of commands that take long: a bar on a terminal, else plain lines in the log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

LogEvery = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds between lines of progress on a stderr that is no terminal; 0 for none, as with --json."
    ),
]
EVERY = 60.0
log = logging.getLogger(__name__)
log.setLevel(logging.INFO)  # at every level of the others: --log-every turns the lines off


class RunProgress:
    """Counts what a run has done, with its rate and the time that is left.

    Args:
        total: How much there is to do.
        unit: What is counted.
        quiet: Whether to show nothing.
        every: Seconds between lines; 0 for none.
        done: How much earlier runs have done, which does not enter the rate.
        clock: Seconds, from any start.
    """

    def __init__(
        self,
        total: int,
        unit: str,
        *,
        quiet: bool,
        every: float = EVERY,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from tqdm import tqdm

        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bar = tqdm(
            total=total, initial=done, unit=f" {unit}", file=sys.stderr, disable=quiet or not terminal, smoothing=0.05
        )
        self._total, self._unit, self._before, self._done, self._clock = total, unit, done, done, clock
        self._every = 0.0 if quiet or terminal else every
        self._start = self._last = clock()

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def restart(self) -> None:
        """Takes the time from now on, where other work has come before."""
        self._start = self._clock()

    def update(self, count: int = 1, note: str = "") -> None:
        """Adds what has been done; the note, such as the recipe at work, follows the numbers."""
        self._done += count
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(count)
        now = self._clock()
        if self._every and now - self._last >= self._every:
            self._last = now
            log.info("%s%s", self._line(now - self._start), f", {note}" if note else "")

    def write(self, line: str) -> None:
        """Prints a line without damage to the bar."""
        if sys.stderr is not None:
            self._bar.write(line, file=sys.stderr)

    def _line(self, seconds: float) -> str:
        text = f"{self._done:,} of {self._total:,} {self._unit}"
        made = self._done - self._before
        return text if made < 1 else f"{text}, {rate_and_rest(made, seconds, self._total - self._done, self._unit)}"


def rate_and_rest(made: int, seconds: float, left: int, unit: str) -> str:
    """The rate at which something was made, and how long the rest takes at that rate."""
    from tqdm import tqdm

    rate = made / max(seconds, 1e-9)
    return f"{rate:.3g} {unit}/s, {tqdm.format_interval(max(left, 0) / rate)} left"
