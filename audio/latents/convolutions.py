"""A padding cache for causal convolutions that can be rolled back to any frame of the last windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass
class WindowInputs:
    """The inputs of all layers in one window.

    Attributes:
        at: Host int64 [B], frames of each row before the window.
        width: Frames in the window.
        inputs: By layer, the padding followed by the window's inputs, [B, C, left_pad + width * rate].
    """

    ROWS = ("at", "inputs")

    at: NDArray[np.int64]
    width: int
    inputs: dict[str, Tensor] = field(default_factory=dict)


class RollbackPaddingCache:
    """Replaces the padding cache of VibeVoice's tokenizers, which cannot be rolled back.

    A layer needs its last `left_pad` inputs. This cache keeps the inputs of the last windows in full, so that the
    padding before any frame in them is a slice.

    Args:
        depth: Windows to keep; a row can be rolled back to any frame in them.
    """

    ROWS = ("windows",)

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._windows: list[WindowInputs] = []
        self._sources: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # [B], the window that holds a row's padding
        self._offsets: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # [B], frames of that window before it

    @property
    def windows(self) -> tuple[WindowInputs, ...]:
        """The windows that are kept."""
        return tuple(self._windows)

    def begin(self, at: NDArray[np.int64], width: int) -> None:
        """Rolls back to frame `at` of each row (host int64 [B]); the next call reads frames `at` to `at + width`."""
        self._sources, self._offsets = np.full(len(at), -1), np.zeros(len(at), dtype=np.int64)
        for index, window in enumerate(self._windows):  # the latest of several
            inside = (window.at <= at) & (at <= window.at + window.width)
            self._sources[inside], self._offsets[inside] = index, (at - window.at)[inside]
        assert ((self._sources >= 0) | (at == 0)).all(), "a row is rolled back further than the kept windows"
        self._windows.append(WindowInputs(at, width))

    def end(self) -> None:
        """Drops windows beyond `depth`, after all layers have been called."""
        self._windows = self._windows[-self._depth :]

    def update(self, hidden_states: Tensor, cache_key: str, conv_module: Any) -> Tensor:
        """The inputs of a layer after their padding, [B, C, left_pad + n]; the signature is that of transformers."""
        left, current = conv_module.left_pad, self._windows[-1]
        before = hidden_states.new_zeros(*hidden_states.shape[:2], left)
        for row, (source, offset) in enumerate(zip(self._sources, self._offsets, strict=True)):
            if source >= 0 and left:
                window = self._windows[source]
                inputs = window.inputs[cache_key][row]
                first = offset * ((inputs.shape[-1] - left) // window.width)
                before[row] = inputs[:, first : first + left]
        current.inputs[cache_key] = torch.cat([before, hidden_states], dim=-1)
        return current.inputs[cache_key]
