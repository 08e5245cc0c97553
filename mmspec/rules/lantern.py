"""LANTERN (Jang et al. 2024, arXiv 2410.03355) and LANTERN++ (Park et al. 2025, arXiv 2502.06352).

Tokens that lie next to each other in the codebook look alike, so the neighbours of a draft x lend it their
probability: a(x) = (p(x) + sum of p over A) / q(x), where A is the longest run of nearest neighbours whose sum stays
within a budget. The two differ in the budget: delta, or (lambda - 1) p(x).

Both keep the plain residual here. The published code takes the probability of all neighbours away after a rejection,
whether they lent it or not, which moves the outcome further from the target than the budget says.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.codebook import Codebook, nearest, needed


@dataclass(frozen=True, eq=False)
class Additive:
    """LANTERN: neighbours lend `delta` in all; 0 is exact.

    `near`: int32 [V, k], the nearest tokens of each token, itself where it has no more.
    """

    near: Tensor
    delta: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return _lent(self.near, p, q, x, p.new_full((), self.delta))


@dataclass(frozen=True, eq=False)
class Multiplicative:
    """LANTERN++: neighbours lend (lambda - 1) p(x) in all, `factor` being lambda; 1 and below is exact."""

    near: Tensor
    factor: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return _lent(self.near, p, q, x, max(self.factor - 1, 0.0) * p.gather(-1, x[..., None]))


def additive(codebook: Codebook | None, delta: float, k: int) -> Additive:
    """LANTERN with the `k` nearest tokens of a codebook."""
    return Additive(nearest(needed(codebook), k), delta)


def multiplicative(codebook: Codebook | None, factor: float, k: int) -> Multiplicative:
    """LANTERN++ with the `k` nearest tokens of a codebook."""
    return Multiplicative(nearest(needed(codebook), k), factor)


def _lent(near: Tensor, p: Tensor, q: Tensor, x: Tensor, budget: Tensor) -> Tensor:
    index = x[..., None]
    around = near.to(x.device)[x].long()  # [B, m, k]
    lent = p.gather(-1, around).masked_fill(around == index, 0.0).cumsum(-1)
    lent = lent.masked_fill(lent > budget, 0.0).amax(-1, keepdim=True)
    return ((p.gather(-1, index) + lent) / q.gather(-1, index))[..., 0]
