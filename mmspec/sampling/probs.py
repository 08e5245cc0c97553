"""The two forms of probabilities: a tensor, or logits that kernels read (`mmspec.sampling.lazy_probs.LazyProbs`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from torch import Tensor

if TYPE_CHECKING:  # Triton may be missing
    from mmspec.sampling.lazy_probs import LazyProbs

Probs: TypeAlias = "Tensor | LazyProbs"


class NotWritten:
    """The base of `LazyProbs`, which cannot be imported where Triton is missing."""


def is_lazy(value: object) -> TypeGuard[LazyProbs]:
    """Whether a value is probabilities that are not written out."""
    return isinstance(value, NotWritten)


def dense(probs: Probs) -> Tensor:
    """The probabilities as a tensor, float32 [B, W, ..., V]."""
    return probs if isinstance(probs, Tensor) else probs.dense()
