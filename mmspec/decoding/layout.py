"""The sequence to generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.sampling.constraints import Constraint, ForcedCells
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import ColumnSampler, Sampler, TokenSampler

TokenKind = Literal["tokens", "columns", "latents"]


@dataclass(frozen=True)
class Layout:
    """The sequence to generate.

    Attributes:
        length: Positions per row, N.
        width: Positions per line of a 2-D token map in raster order; None for a stream.
        constraint: Allowed tokens by position, in all rows alike or in each row its own.
        eos: Tokens that end a row early; they are kept, and what lies after them is filled with `pad`.
        cell: The shape of one token: a number as a rule; (K,) for a column of K codebooks.
        dtype: The type of one token.
        ends: Tells from tokens [B, W, *cell] which end their row, bool [B, W]; in place of `eos` where a token is not a
            number.
        forced: Of columns, the cells that are forced.
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

    @property
    def kind(self) -> TokenKind:
        """What one token is: a number, a column of codes, or a vector."""
        if self.dtype.is_floating_point:
            return "latents"
        return "columns" if self.cell else "tokens"

    def sampler(self, samplings: Sequence[SamplingParams], device: torch.device) -> Sampler:
        """A sampler of tokens or columns with one set of parameters per row, under this layout's constraints."""
        if self.kind == "columns":
            return ColumnSampler(samplings, self.forced, device)
        return TokenSampler(samplings, self.constraint, device)
