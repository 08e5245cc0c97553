"""Token initialization: drafts for positions that are new to the window, from the left and the upper neighbor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
