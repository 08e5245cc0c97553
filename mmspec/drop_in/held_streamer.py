"""A streamer of transformers that is ended by its holder."""

from __future__ import annotations

from typing import Any


class HeldStreamer:
    """Hands on what is put, but not the end, after which a streamer could not be used for a second attempt.

    Args:
        streamer: A `transformers.generation.BaseStreamer`.

    Attributes:
        started: Whether something has been put.
    """

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer
        self.started = False

    def put(self, value: Any) -> None:
        """Hands on the prompt, or tokens."""
        self.started = True
        self._streamer.put(value)

    def end(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Ends the streamer."""
        self._streamer.end()
