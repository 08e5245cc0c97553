"""LANTERN (Jang et al. 2024, arXiv 2410.03355) and LANTERN++ (Park et al. 2025, arXiv 2502.06352).

Tokens that lie next to each other in the codebook look alike, so the neighbours of a draft x lend it their
probability: a(x) = (p(x) + sum of p over A) / q(x), where A is the longest run of nearest neighbours whose sum stays
within a budget. The two differ in the budget: delta, or (lambda - 1) p(x).

Both keep the plain residual here. The published code takes the probability of all neighbours away after a rejection,
whether they lent it or not, which moves the outcome further from the target than the budget says.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mmspec.neighbours import Codebook, nearest, needed
from mmspec.rules import Accept


def additive(codebook: Codebook | None, delta: float, k: int) -> Accept:
    """LANTERN: neighbours lend `delta` in all; 0 is exact."""
    return _lent(codebook, k, lambda p_x: p_x.new_full((), delta))


def multiplicative(codebook: Codebook | None, factor: float, k: int) -> Accept:
    """LANTERN++: neighbours lend (lambda - 1) p(x) in all, `factor` being lambda; 1 and below is exact."""
    return _lent(codebook, k, lambda p_x: max(factor - 1, 0.0) * p_x)


def _lent(codebook: Codebook | None, k: int, budget: Callable[[Tensor], Tensor]) -> Accept:
    table = nearest(needed(codebook), k)  # int32 [V, k], the token itself where it has no more neighbours

    def accept(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        index = x[..., None]
        around = table.to(x.device)[x].long()  # [B, m, k]
        p_x = p.gather(-1, index)
        lent = p.gather(-1, around).masked_fill(around == index, 0.0).cumsum(-1)
        lent = lent.masked_fill(lent > budget(p_x), 0.0).amax(-1, keepdim=True)
        return ((p_x + lent) / q.gather(-1, index))[..., 0]

    return accept
