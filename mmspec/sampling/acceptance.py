"""The types of acceptance rules: plain rules, rules that read the target's features, and one rule per codebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mmspec.kernels.rule import KernelRule

# p, q float32 [B, m, V] and draft tokens x int64 [B, m] (slot i of the window holds draft i) -> the probability float32
# [B, m] with which each draft is accepted; values above 1 count as 1.
Accept = Callable[[Tensor, Tensor, Tensor], Tensor]

# The same with a fourth argument, features float [B, m, D]: the target's hidden state at each draft, which depends on
# the draft and everything before it; after the final norm, of the conditional rows.
FeatureAccept = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@runtime_checkable
class SupportsKernels(Protocol):
    """An acceptance function that `mmspec.kernels.accept` can evaluate as well."""

    def kernel_rule(self, device: torch.device) -> KernelRule:
        """The rule in the form that the kernel reads, with its tensors on `device`."""
        ...


@dataclass(frozen=True)
class FeatureRule:
    """An acceptance function that reads the target's features.

    Attributes:
        accept: The function.
        features: [B, 1 + m, D], one for each entry of the present target call; None outside of one.
    """

    accept: FeatureAccept
    features: Tensor | None = None

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """The acceptance probabilities of the drafts of a window, which are its entries in order."""
        assert self.features is not None
        return self.accept(p, q, x, self.features[:, 1:])

    def entry(self, entry: Tensor) -> Accept:
        """The acceptance function for one entry of each row, int64 [B]: all drafts use the feature of that entry."""
        assert self.features is not None
        feature = self.features[torch.arange(len(entry), device=self.features.device), entry.to(self.features.device)]
        return lambda p, q, x: self.accept(p, q, x, feature[:, None].expand(-1, x.shape[1], -1))


class PerCodebook:
    """An acceptance function for the cells of columns, made of one acceptance function per codebook.

    Args:
        rules: The acceptance functions, K of them.
    """

    def __init__(self, rules: Sequence[Accept]) -> None:
        self.rules = rules

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """The acceptance probability of each cell, float32 [B, m, K]; each rule's slot i is slot i of the window.

        Args:
            p: float32 [B, m, K, V].
            q: float32 [B, m, K, V].
            x: int64 [B, m, K], the drafts.
        """
        cells = enumerate(self.rules)
        return torch.stack([rule(p[:, :, k], q[:, :, k], x[:, :, k]) for k, rule in cells], dim=-1)
