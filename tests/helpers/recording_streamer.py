"""A streamer of transformers that keeps what it is given."""

from __future__ import annotations

from torch import Tensor
from transformers.generation.streamers import BaseStreamer


class Recorder(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.puts: list[list[int]] = []
        self.ends = 0

    def put(self, value: Tensor) -> None:
        self.puts.append(value.flatten().tolist())

    def end(self) -> None:
        self.ends += 1
