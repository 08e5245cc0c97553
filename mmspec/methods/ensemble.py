"""Ensemble: the draft is tested against a mixture of target and draft distribution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.rule import KernelRule
from mmspec.sampling.rejection import ratio


@dataclass(frozen=True)
class Ensemble:
    """DIVERSE (arXiv 2604.07622): x is tested against v = w p + (1 - w) q, so a(x) = w p/q + 1 - w.

    The residual of v and q is that of p and q.

    Attributes:
        draft: 1 - w, the share of the draft distribution; 0 is exact.
    """

    draft: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return (1 - self.draft) * ratio(p, q, x) + self.draft

    def kernel_rule(self, device: torch.device) -> KernelRule:
        return KernelRule("ensemble", self.draft)
