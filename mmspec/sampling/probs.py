"""The two forms of probabilities: a tensor, or logits that kernels read (`mmspec.sampling.lazy_probs.LazyProbs`).

`widest` is the type of their sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor


class NotWritten(ABC):
    """What `LazyProbs`, which cannot be imported where Triton is missing, shares with a tensor.

    Attributes:
        shape: That of the probabilities.
        device: Of the logits.
    """

    shape: torch.Size
    device: torch.device

    @abstractmethod
    def __len__(self) -> int:
        """B."""

    @abstractmethod
    def __getitem__(self, index: Any) -> NotWritten:
        """Some of the slots, by an index of the axes B and W that keeps both."""

    @abstractmethod
    def unflatten(self, dim: int, sizes: Sequence[int]) -> NotWritten:
        """Distributions [B, W, K, V] from distributions [B, W * K, V]; `dim` is 1."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The probabilities themselves."""


Probs: TypeAlias = Tensor | NotWritten


def dense(probs: Probs) -> Tensor:
    """The probabilities as a tensor, float32 [B, W, ..., V]."""
    return probs if isinstance(probs, Tensor) else probs.dense()


def widest(device: torch.device) -> torch.dtype:
    """float64, in which sums of probabilities are inverted; float32 on a device that has no float64, such as `mps`.

    Sums of at most a few hundred groups of tokens are added in this type: in float32 a probability is off by about
    1e-5 of itself at most.
    """
    return torch.float64 if _has_float64(device.type) else torch.float32


@cache
def _has_float64(kind: str) -> bool:
    if kind in ("cpu", "cuda", "meta"):
        return True
    try:
        torch.empty(0, dtype=torch.float64, device=kind)
    except (TypeError, RuntimeError):
        return False
    return True
