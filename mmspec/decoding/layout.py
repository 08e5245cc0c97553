"""The layout of the sequence to generate: length, line width, token type, constraints and end tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
        constraint: The tokens allowed at each position, the same for all rows or one set per row.
        eos: Tokens that end a row early. They are kept, and the positions after them are filled with `pad`.
        pad: Fills the positions after a row's end.
        cell: The shape of one token: () for an id, (K,) for a column of K codebooks.
        dtype: The dtype of the tokens.
        ends: Maps tokens [B, W, *cell] to whether they end their row, bool [B, W]. Replaces `eos` if a token is not a
            single id.
        forced: The cells of columns that are forced.
        stops: Maps a row of the request and its tokens so far, int64 [n, *cell], to whether the row ends with the last
            of them. Called once per token, in order, after `eos` and `ends`.
        cut: Maps a row of the request and all of its tokens, int64 [n, *cell], to whether its limit cut it off, where
            an end token does not tell: a model may be forced to end, or end with a token that is no end token. None
            is a row that reaches its limit before a token that ends it.
    """

    ROWS = ("constraint", "forced")

    length: int
    width: int | None = None
    constraint: Constraint | None = None
    eos: frozenset[int] = frozenset()
    pad: int = 0
    cell: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64
    ends: Callable[[Tensor], Tensor] | None = None
    forced: ForcedCells | None = None
    stops: Callable[[int, Tensor], bool] | None = None
    cut: Callable[[int, Tensor], bool] | None = None

    @property
    def kind(self) -> TokenKind:
        """The kind of one token: an id ("tokens"), a column of codes ("columns"), or a vector ("latents")."""
        if self.dtype.is_floating_point:
            return "latents"
        return "columns" if self.cell else "tokens"

    @property
    def kept_by_rows(self) -> tuple[Any, ...]:
        """What rows that join a batch must have in common with it."""
        given = (each is None for each in (self.constraint, self.forced, self.ends, self.stops))
        return self.width, self.eos, self.pad, self.cell, self.dtype, *given

    @property
    def may_end(self) -> bool:
        """Whether a row may end before its full length."""
        return bool(self.eos) or self.ends is not None or self.stops is not None

    def sampler(self, samplings: Sequence[SamplingParams], device: torch.device) -> Sampler:
        """A sampler of tokens or columns with one set of parameters per row, under this layout's constraints."""
        if self.kind == "columns":
            return ColumnSampler(samplings, self.forced, device)
        return TokenSampler(samplings, self.constraint, device)
