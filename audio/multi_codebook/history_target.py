"""A target whose logits depend on all columns before a position, not on the model's states alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.multi_codebook.column_target import ColumnTarget
from mmspec.audio.multi_codebook.history import ColumnHistory
from mmspec.decoding.target import EarlyExit, cache_bytes
from mmspec.sampling.logits import Logits


class HistoryTarget(ABC):
    """A `ColumnTarget` with its columns so far; subclasses process its logits.

    Args:
        inner: The model.
        history: The columns that it reads.
    """

    def __init__(self, inner: ColumnTarget, history: ColumnHistory) -> None:
        self.vocab_size, self.layers, self.device = inner.vocab_size, inner.layers, inner.device
        self._inner, self._history = inner, history

    @abstractmethod
    def _processed(self, logits: Logits, positions: NDArray[np.int64]) -> Logits:
        """The processed logits [B, W, K, V] of the given positions, host int64 [B, W]."""

    def prefill(self) -> Logits:
        logits = self._inner.prefill()
        return self._processed(logits, np.zeros((len(logits.cond), 1), dtype=np.int64))

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        self._history.write(tokens, at)
        logits = self._inner.forward(tokens, at, early_exit)
        return self._processed(logits, at[:, None] + 1 + np.arange(tokens.shape[1]))

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
