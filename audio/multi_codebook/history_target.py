"""A target whose logits depend on all columns before a position, not on the model's states alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.multi_codebook.history import ColumnHistory, EndRule
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.target import EarlyExit, cache_bytes, reads_ahead
from mmspec.hf.causal_target import CausalTarget
from mmspec.kernels.backend import choose
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.rows import RowNames


class HistoryTarget(ABC):
    """A target of columns with its columns so far; subclasses process its logits.

    Where the Triton kernels run, the cells that the columns so far force are found by one of them, and the logits are
    written by another; on a device that runs no Triton, and on a CPU, `_processed` does both.

    Args:
        inner: The model, a `mmspec.audio.multi_codebook.column_target.ColumnTarget`, whose calls may be captured.
        history: The columns that it reads.
    """

    ROWS: ClassVar[RowNames] = ("_history", "_inner")
    SAME: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inner: CausalTarget | CUDAGraphTarget, history: ColumnHistory) -> None:
        self.vocab_size, self.layers, self.device = inner.vocab_size, inner.layers, inner.device
        self._inner, self._history = inner, history
        self._known_rule: EndRule | None = None

    @abstractmethod
    def _processed(self, logits: Logits, positions: Numbers) -> Logits:
        """The processed logits [B, W, K, V] of the given positions, [B, W]."""

    @abstractmethod
    def _rule(self) -> EndRule:
        """What cells are forced to by the columns so far, with its tensors on the device."""

    def _forced(self, logits: Logits, must: Tensor, at: Numbers) -> Logits:
        """What `_processed` gives, in a few launches: logits [B, W, K, V], codes of forced cells [B, W, K] or -1."""
        # `at` [B] has its copy on the device: the position before the first one, -1 after the prompt.
        # Imported here: Triton may be missing.
        from mmspec.kernels.column_rules import forced_logits, plain_stats

        found = forced_logits(plain_stats(logits.cond.flatten(1, 2)), must.flatten(1))
        return Logits(found.view(logits.cond.shape), None)

    def _read(self, tokens: Tensor) -> Tensor:
        """The cells of columns int64 [B, W, K] that the history holds."""
        return tokens

    @property
    def _by_kernels(self) -> bool:
        return choose(self.device.type) == "triton"

    def _after(self, tokens: Tensor | None, at: Numbers, count: int) -> Tensor:
        """The forced cells of the columns after some, which are written to the history; see `ColumnHistory`."""
        if self._known_rule is None:
            self._known_rule = self._rule()
        read = None if tokens is None else self._read(tokens)
        return self._history.forced_after(read, at.on(self.device), count, self._known_rule)

    def prefill(self) -> Logits:
        logits = self._inner.prefill()
        if self._by_kernels:
            at = Numbers(np.full(len(logits.cond), -1)).uploaded(self.device)
            return self._forced(logits, self._after(None, at, 1), at)
        return self._processed(logits, Numbers(np.zeros((len(logits.cond), 1), dtype=np.int64)))

    def forward(self, tokens: Tensor, at: NDArray[np.int64], early_exit: EarlyExit | None = None) -> Logits:
        start, width = Numbers(at).uploaded(self.device), tokens.shape[1]
        if self._by_kernels:
            must = self._after(tokens, start, width)
            return self._forced(self._inner_logits(tokens, start, early_exit), must, start)
        self._history.write(tokens, start)
        logits = self._inner_logits(tokens, start, early_exit)
        return self._processed(logits, start.window(1, width, self.device))

    def _inner_logits(self, tokens: Tensor, at: Numbers, early_exit: EarlyExit | None) -> Logits:
        """The logits of the model, which reads positions that are on the device where its calls are captured."""
        inner = self._inner
        found = inner.forward_ahead(tokens, at, early_exit) if isinstance(inner, CUDAGraphTarget) else None
        return inner.forward(tokens, at.host, early_exit) if found is None else found

    @property
    def reads_ahead(self) -> bool:
        return self._by_kernels and reads_ahead(self._inner)

    def forward_ahead(self, tokens: Tensor, at: Numbers, early_exit: EarlyExit | None = None) -> Logits | None:
        assert isinstance(self._inner, CUDAGraphTarget)
        at = at.uploaded(self.device)
        must = self._after(tokens, at, tokens.shape[1])
        logits = self._inner.forward_ahead(tokens, at, early_exit)
        return None if logits is None else self._forced(logits, must, at)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return cache_bytes(self._inner)
