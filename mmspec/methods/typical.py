"""Typical acceptance (Medusa, Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.rule import KernelRule
from mmspec.sampling.rejection import ratio


@dataclass(frozen=True)
class Typical:
    """A draft with p(x) >= min(epsilon, alpha exp(-H(p))) is accepted, others as by the exact rule.

    The threshold applies only if it is above 0; epsilon = 0 is exact.
    """

    epsilon: float
    alpha: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        entropy = torch.special.entr(p).sum(-1)
        threshold = (self.alpha * (-entropy).exp()).clamp(max=self.epsilon)
        likely = (p.gather(-1, x[..., None])[..., 0] >= threshold) & (threshold > 0)
        return torch.where(likely, 1.0, ratio(p, q, x))

    def kernel_rule(self, device: torch.device) -> KernelRule:
        return KernelRule("typical", self.epsilon, self.alpha)
