"""Rules that look at what the target made of a draft: judge decoding (Bachmann et al. 2025, arXiv 2501.19309)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.errors import ArgumentError
from mmspec.rules import Accept
from mmspec.target import FeatureTarget

# As `mmspec.rules.Accept`, with the features float [B, m, D] that the target has where it has read each draft: behind
# its final norm, of the conditional side.
LookingAccept = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Looking:
    """An acceptance function that reads features.

    - `accept`: the function.
    - `features`: [B, 1 + m, D] of the entries of one target call; None outside of one.
    """

    accept: LookingAccept
    features: Tensor | None = None

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """Of the drafts of a window, which are its entries in order."""
        assert self.features is not None
        return self.accept(p, q, x, self.features[:, 1:])

    def entry(self, entry: Tensor) -> Accept:
        """The acceptance function for drafts that all are one entry of each row, int64 [B]."""
        assert self.features is not None
        feature = self.features[torch.arange(len(entry), device=self.features.device), entry.to(self.features.device)]
        return lambda p, q, x: self.accept(p, q, x, feature[:, None].expand(-1, x.shape[1], -1))


def look(rule: Accept, target: object, rows: int) -> Accept:
    """The rule for the call that a target has just answered for so many rows; one that does not look stays as it is.

    **Raises:** `ArgumentError` when the target shows no features.
    """
    if not isinstance(rule, Looking):
        return rule
    if not isinstance(target, FeatureTarget):
        raise ArgumentError(f"the acceptance rule looks at features, and {type(target).__name__} shows none")
    return replace(rule, features=target.features()[:rows])
