"""The type of acceptance rules, and rules that read the target's hidden states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Accept = Callable[[Tensor, Tensor, Tensor], Tensor]


# As `mmspec.sampling.acceptance.Accept`, with the features float [B, m, D] that the target has where it has read each draft: after
# its final norm, of the conditional side.
FeatureAccept = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class FeatureRule:
    """An acceptance function that reads features.

    Attributes:
        accept: The function.
        features: [B, 1 + m, D] of the entries of one target call; None outside of one.
    """

    accept: FeatureAccept
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
