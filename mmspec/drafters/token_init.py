"""Token initialization: drafts for positions that are new to the window, from the left and the upper neighbor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmspec.decoding.batch import BatchState
from mmspec.sampling.numbers import copied
from mmspec.sampling.rejection import Verdict
from mmspec.sampling.rng import WindowRNG

# (left, up, u) -> tokens, int64 [B] each. `left` is the token before the position. `up` is the token above it, or in a
# stream the one before `left`; -1 if there is none. `u` float32 [B] is uniform in [0, 1). The token has a one-hot q, so
# that any initialization is exact.
TokenInit = Callable[[Tensor, Tensor, Tensor], Tensor]

Tokens = NDArray[np.int64]
# The same on the host, where a call of NumPy takes a fraction of the time of one of torch.
HostTokenInit = Callable[[Tokens, Tokens, NDArray[np.float32]], Tokens]


@runtime_checkable
class SupportsHost(Protocol):
    """A `TokenInit` that also computes on the host."""

    def on_host(self, left: Tokens, up: Tokens, u: NDArray[np.float32]) -> Tokens:
        """The tokens of a call with the same arguments."""
        ...


@runtime_checkable
class LearnedTable(Protocol):
    """An initialization from a table of each row, which changes with every window.

    Attributes:
        table: int32 [B, entries], the token after each pair of neighbors, -1 for none; see `table_entry`. Of columns
            int32 [B, K, V], the code after each code.
    """

    table: Tensor

    def update(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """Learns from a window; `state` still ends where the window began.

        It needs no counts of accepted drafts, so that it is called before the host knows them; a second call for the
        same window does nothing.
        """
        ...


class BaseInitDrafter:
    """What drafters of tokens and of columns by an initialization have in common: a `LearnedTable` learns.

    Args:
        init: The initialization.
    """

    ROWS = ("_learned",)

    calls = 0

    def __init__(self, init: object) -> None:
        self._learned = init if isinstance(init, LearnedTable) else None

    @property
    def learns(self) -> bool:
        """Whether it changes with every window."""
        return self._learned is not None

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None:
        """It does not need the counts."""
        if self._learned is not None:
            self._learned.update(verdict, state, draws)


def host_version(init: TokenInit) -> HostTokenInit:
    """The same initialization of NumPy arrays, for drafts on a CPU."""
    known: object = init
    if known is repeat_left:
        return lambda left, up, u: left
    if known is repeat_up:
        return lambda left, up, u: np.where(up >= 0, up, left)
    if isinstance(known, SupportsHost):
        return known.on_host

    def converted(left: Tokens, up: Tokens, u: NDArray[np.float32]) -> Tokens:
        return init(*(torch.from_numpy(np.ascontiguousarray(each)) for each in (left, up, u))).numpy()

    return converted


def repeat_left(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """Repeats the token before."""
    return left


def repeat_up(left: Tensor, up: Tensor, u: Tensor) -> Tensor:
    """Repeats the token above, or in the first line the token before. For 2-D token maps only."""
    return torch.where(up >= 0, up, left)


@dataclass(frozen=True)
class RandomToken:
    """An initialization with uniformly random tokens.

    Attributes:
        vocab_size: V.
    """

    vocab_size: int

    def __call__(self, left: Tensor, up: Tensor, u: Tensor) -> Tensor:
        return (u * self.vocab_size).long().clamp_(max=self.vocab_size - 1)


def table_entry(left: Tensor, up: Tensor, vocab_size: int, entries: int) -> Tensor:
    """The index of a pair of neighbors (`up` is -1 if there is none) in a table, of the shape of `left`."""
    return ((up + 1) * vocab_size + left) % entries


def neighbors_of_window(verdict: Verdict, state: BatchState) -> tuple[Tensor, Tensor]:
    """The left and the upper neighbor of each slot of a window that has been verified, int64 [B, m + 1] each.

    Args:
        verdict: The outcome.
        state: The batch; it still ends where the window began, and every row has a token.
    """
    count = verdict.p.shape[1]
    last = state.last(2)
    read = torch.cat([last, verdict.draft.tokens], dim=1) if count > 1 else last
    left, up = read[:, 1:], read[:, :-1]
    if width := state.layout.width:
        positions = state.positions(count)
        up = state.at(np.minimum(positions, state.length[:, None] + width - 1) - width)
        if count > width:
            # The token above is in this window.
            up = torch.cat([up[:, :width], verdict.draft.tokens[:, : count - width]], dim=1)
        first = copied(torch.from_numpy(positions % width == 0), up.device)
        left = torch.where(first & (up >= 0), up, left)
    return left, up
