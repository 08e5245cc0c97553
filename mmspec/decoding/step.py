"""The progress of a batch, which callbacks get after each target call, and what a call asks to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.stats import Stats


class TokensSoFar(Sequence[Tensor]):
    """The tokens of each row so far, views of one copy of them all.

    Args:
        tokens: The copy, [rows, N, *cell].
        lengths: Host int64 [rows], the number of tokens of each row.
    """

    def __init__(self, tokens: Tensor, lengths: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, row: int) -> Tensor: ...
    @overload
    def __getitem__(self, row: slice) -> list[Tensor]: ...
    def __getitem__(self, row: int | slice) -> Tensor | list[Tensor]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        return self._tokens[row, : self.lengths[row]]


@dataclass(frozen=True)
class Step:
    """Progress after a target call, the argument of `on_step` callbacks.

    Attributes:
        target_calls: Target calls so far.
        committed: Tokens of all rows so far.
        total: Tokens of all rows if none ends early.
        tokens: A copy of the tokens of each row so far, int64 [n_row] each.
    """

    target_calls: int
    committed: int
    total: int
    tokens: Sequence[Tensor]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each row so far."""
        if isinstance(self.tokens, TokensSoFar):
            return [int(length) for length in self.tokens.lengths]
        return [len(row) for row in self.tokens]


OnStep = Callable[[Step], None]
OnStats = Callable[[Stats], None]


@dataclass(frozen=True)
class Watch:
    """What a call asks to see of its decoding.

    Attributes:
        on_step: Called after every target call of a batch. An exception in it ends the call.
        measure_entropy: Whether to measure `Stats.entropy` and `Stats.nll`.
        on_stats: Called with the statistics of a call at its end.
    """

    on_step: OnStep | None = None
    measure_entropy: bool = False
    on_stats: OnStats | None = None

    def converted(self, convert: Callable[[Tensor], Tensor] | None) -> Watch:
        """Shows steps with the tokens of each row converted, as the pipeline gives them out; None leaves them."""
        on_step = self.on_step
        if on_step is None or convert is None:
            return self
        return replace(
            self, on_step=lambda step: on_step(replace(step, tokens=[convert(tokens) for tokens in step.tokens]))
        )


UNWATCHED = Watch()
