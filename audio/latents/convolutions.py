"""Causal convolutions that read windows and can be set back to any place inside what they read last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass
class StreamState:
    """A window that was read.

    Attributes:
        at: Host int64 [B], how many frames each row had before it.
        width: Frames in it.
        inputs: By layer, what it read and what it remembered before, [B, C, left + width * rate].
    """

    at: NDArray[np.int64]
    width: int
    inputs: dict[str, Tensor] = field(default_factory=dict)


class Rewinding:
    """Stands in for the padding cache of VibeVoice's tokenizers, whose own only goes forward.

    A layer remembers its last `left_pad` inputs. Here it keeps those of the last windows whole, so that its memory
    before any frame in them is a slice.

    Args:
        depth: Windows kept; a row can go back to any frame in them.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._records: list[StreamState] = []
        self._sources: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._offsets: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def begin(self, at: NDArray[np.int64], width: int) -> None:
        """The next call reads frames `at` to `at + width`, host int64 [B]; what was read from there on is forgotten."""
        self._sources, self._offsets = np.full(len(at), -1), np.zeros(len(at), dtype=np.int64)
        for index, record in enumerate(self._records):  # of several, the latest
            inside = (record.at <= at) & (at <= record.at + record.width)
            self._sources[inside], self._offsets[inside] = index, (at - record.at)[inside]
        assert ((self._sources >= 0) | (at == 0)).all(), "a row goes back further than is remembered"
        self._records.append(StreamState(at, width))

    def end(self) -> None:
        """Forgets windows that are too old."""
        self._records = self._records[-self._depth :]

    def select_rows(self, row_ids: list[int]) -> None:
        """Drops all rows but these."""
        for record in self._records:
            record.at = record.at[row_ids]
            record.inputs = {key: inputs[row_ids] for key, inputs in record.inputs.items()}

    def update(self, hidden_states: Tensor, cache_key: str, conv_module: Any) -> Tensor:
        """What a layer reads, with what it remembers before it, [B, C, left_pad + n]."""
        left, current = conv_module.left_pad, self._records[-1]
        before = hidden_states.new_zeros(*hidden_states.shape[:2], left)
        for row, (source, offset) in enumerate(zip(self._sources, self._offsets, strict=True)):
            if source >= 0 and left:
                record = self._records[source]
                inputs = record.inputs[cache_key][row]
                first = offset * ((inputs.shape[-1] - left) // record.width)
                before[row] = inputs[:, first : first + left]
        current.inputs[cache_key] = torch.cat([before, hidden_states], dim=-1)
        return current.inputs[cache_key]
