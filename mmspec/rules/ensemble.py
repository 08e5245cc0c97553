"""Acceptance against a mixture of target and draft distribution."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mmspec.sampling.rejection import ratio


@dataclass(frozen=True)
class Ensemble:
    """DIVERSE (arXiv 2604.07622): x is tested against v = w p + (1 - w) q, so a(x) = w p/q + 1 - w.

    `draft` is 1 - w, the share of the draft's distribution; 0 is exact. The residual of v and q is that of p and q.
    """

    draft: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return (1 - self.draft) * ratio(p, q, x) + self.draft
