"""Rules of columns: each codebook has neighbours of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmspec.sampling.acceptance import Accept


class PerCodebook:
    """An acceptance function of the cells of columns, from one of each codebook."""

    def __init__(self, parts: Sequence[Accept]) -> None:
        self.parts = parts

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """Of p, q float32 [B, m, K, V] and the drafts x int64 [B, m, K], of each cell: float32 [B, m, K].

        Slot i of a column's codebook is slot i of the window to its rule.
        """
        cells = enumerate(self.parts)
        return torch.stack([rule(p[:, :, k], q[:, :, k], x[:, :, k]) for k, rule in cells], dim=-1)
