"""Additive relaxation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.sampling.rejection import ratio


@dataclass(frozen=True)
class Beta:
    """Speech speculative decoding (arXiv 2505.15380): a(x) = p/q + beta; 0 is exact."""

    beta: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return ratio(p, q, x) + self.beta
