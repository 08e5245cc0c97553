"""How long ago a model made its latest step, by which a call that hangs shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepClock:
    """Measures the time since the latest step of a model that has requests.

    Args:
        now: The time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._requests = 0
        self._latest = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        """The model has one more request in the block."""
        if not self._requests:
            self.step()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def step(self) -> None:
        """A request was given tokens, or was the first to arrive."""
        self._latest = self._now()

    @property
    def seconds(self) -> float:
        """Since the latest step; 0 while there is no request."""
        return self._now() - self._latest if self._requests else 0.0
