"""A target whose logits depend on all columns before a position, not on the model's states alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.multi_codebook.history import ColumnHistory
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.target import EarlyExit, cache_bytes
from mmspec.hf.causal_target import CausalTarget
from mmspec.sampling.logits import Logits
from mmspec.sampling.mirrored import uploaded, window_positions


class HistoryTarget(ABC):
    """A target of columns with its columns so far; subclasses process its logits.

    Args:
        inner: The model, a `mmspec.audio.multi_codebook.column_target.ColumnTarget`, whose calls may be captured.
        history: The columns that it reads.
    """

    def __init__(self, inner: CausalTarget | CUDAGraphTarget, history: ColumnHistory) -> None:
        self.vocab_size, self.layers, self.device = inner.vocab_size, inner.layers, inner.device
        self._inner, self._history = inner, history

    @abstractmethod
    def _processed(self, logits: Logits, positions: NDArray[np.int64]) -> Logits:
        """The processed logits [B, W, K, V] of the given positions, host int64 [B, W]."""

    def prefill(self) -> Logits:
        logits = self._inner.prefill()
        return self._processed(logits, np.zeros((len(logits.cond), 1), dtype=np.int64))

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        at = uploaded(at, self.device)
        self._history.write(tokens, at)
        logits = self._inner.forward(tokens, at, early_exit)
        return self._processed(logits, window_positions(at, 1, tokens.shape[1], self.device))

    def select_rows(self, row_ids: list[int]) -> None:
        self._history.select_rows(row_ids)
        self._inner.select_rows(row_ids)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._inner)

    def can_join(self, other: object) -> bool:
        """Whether the rows of `other` can join: a target of the same model."""
        return (
            isinstance(other, type(self))
            and self._history.can_join(other._history)
            and self._inner.can_join(other._inner)
        )

    def join(self, other: Any, row_ids: list[int]) -> None:
        self._history.join(other._history, row_ids)
        self._inner.join(other._inner, row_ids)
