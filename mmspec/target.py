"""What the loop needs of a model. A model is wrapped to this shape; the loop never asks which model it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.columns import ForcedCells
from mmspec.law import Constraint, Logits


@dataclass(frozen=True)
class Layout:
    """The sequence to be made.

    - `length`: positions per row, N.
    - `width`: positions per line of a 2-D token map in raster order; None for a stream.
    - `constraint`: allowed tokens by position, in all rows alike or in each row its own.
    - `eos`: tokens that end a row early; they are kept, and what lies behind them is filled with `pad`.
    - `cell`, `dtype`: the shape and type of one token: a number as a rule; (K,) for a column of K codebooks.
    - `ends`: tells from tokens [B, W, *cell] which end their row, bool [B, W]; in place of `eos` where a token is not a
      number.
    - `forced`: of columns, the cells that are forced.
    """

    length: int
    width: int | None = None
    constraint: Constraint | None = None
    eos: frozenset[int] = frozenset()
    pad: int = 0
    cell: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64
    ends: Callable[[Tensor], Tensor] | None = None
    forced: ForcedCells | None = None


def both_sides(rows: list[int], count: int, guided: bool, device: torch.device) -> Tensor:
    """Where a doubled batch keeps `rows` of its `count` rows: int64, the conditional ones, then their unconditional."""
    index = torch.tensor(rows, device=device)
    return torch.cat([index, index + count]) if guided else index


def split_sides(logits: Tensor, guided: bool) -> Logits:
    """The two halves of a doubled batch's logits [2 * B, W, V], or those of a plain one [B, W, V]."""
    if not guided:
        return Logits(logits, None)
    cond, uncond = logits.chunk(2)
    return Logits(cond, uncond)


class Target(Protocol):
    """A model with a prompt already given, decoding a batch of rows that advance at their own pace.

    A call says where each row's window starts; whatever the target remembers of that position and later ones is
    thereby rolled back. With guidance, the unconditional rows are the target's own affair: they see the same tokens.
    """

    vocab_size: int
    device: torch.device

    def prefill(self) -> Logits:
        """Reads the prompts; returns the logits of position 0, [B, 1, V]."""
        ...

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        """Reads a window and returns the logits of the position after each of its tokens.

        **Arguments:**

        - `tokens`: int64 [B, W].
        - `at`: host int64 [B]; `tokens[b, i]` has position `at[b] + i`. The last windows of a row reach past the end of
          the sequence; logits there are ignored but must be numbers.
        """
        ...

    def keep(self, rows: list[int]) -> None:
        """Drops all rows but these; they keep their order."""
        ...


@runtime_checkable
class FeatureTarget(Target, Protocol):
    """A target that shows its features, for drafters that start from them.

    Features are hidden states as the head reads them, behind the final norm: [R, W, D], of all B rows, and with
    guidance of their unconditional sides behind them.
    """

    def features(self) -> Tensor:
        """Those of the last call's window, one for each of its tokens, or entries of a tree; of a prompt, its slots."""
        ...

    def head(self, features: Tensor) -> Tensor:
        """Logits [R, W, V] of features [R, W, D]."""
        ...
