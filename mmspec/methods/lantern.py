"""LANTERN (Jang et al. 2024, arXiv 2410.03355) and LANTERN++ (Park et al. 2025, arXiv 2502.06352).

Tokens that lie next to each other in the codebook look alike, so the nearest neighbors of a draft x lend it their
probability: a(x) = (p(x) + sum of p over A) / q(x), where A is the longest run of nearest neighbors whose sum stays
within a budget. The budget of LANTERN is delta, that of LANTERN++ is (lambda - 1) p(x).

Both keep the plain residual here. The published code subtracts the probability of all neighbors after a rejection,
whether they lent it or not, which moves the outcome further from the target than the budget allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.codebook import Codebook, nearest, require_codebook
from mmspec.kernels.rule import KernelRule


@dataclass(frozen=True, eq=False)
class Additive:
    """LANTERN.

    Attributes:
        near: int32 [V, k], the nearest tokens of each token; the token itself where there are no more.
        delta: The largest probability that the neighbors of a token lend in all; 0 is exact.
    """

    near: Tensor
    delta: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return _accept(self.near, p, q, x, p.new_full((), self.delta))

    def kernel_rule(self, device: torch.device) -> KernelRule:
        return KernelRule("lantern", self.delta, near=self.near.to(device))


@dataclass(frozen=True, eq=False)
class Multiplicative:
    """LANTERN++.

    Attributes:
        near: int32 [V, k], the nearest tokens of each token; the token itself where there are no more.
        factor: lambda; the neighbors of x lend at most (lambda - 1) p(x) in all. 1 and below is exact.
    """

    near: Tensor
    factor: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return _accept(self.near, p, q, x, max(self.factor - 1, 0.0) * p.gather(-1, x[..., None]))

    def kernel_rule(self, device: torch.device) -> KernelRule:
        return KernelRule("lantern++", self.factor, near=self.near.to(device))


def additive(codebook: Codebook | None, delta: float, k: int) -> Additive:
    """LANTERN with the `k` nearest tokens of a codebook."""
    return Additive(nearest(require_codebook(codebook), k), delta)


def multiplicative(codebook: Codebook | None, factor: float, k: int) -> Multiplicative:
    """LANTERN++ with the `k` nearest tokens of a codebook."""
    return Multiplicative(nearest(require_codebook(codebook), k), factor)


def _accept(near: Tensor, p: Tensor, q: Tensor, x: Tensor, budget: Tensor) -> Tensor:
    index = x[..., None]
    neighbors = near.to(x.device)[x].long()  # [B, m, k]
    lent = p.gather(-1, neighbors).masked_fill(neighbors == index, 0.0).cumsum(-1)
    lent = F.pad(lent.masked_fill(lent > budget, 0.0), (1, 0)).amax(-1, keepdim=True)  # 0 without neighbors
    return ((p.gather(-1, index) + lent) / q.gather(-1, index))[..., 0]
