"""Beta: a constant added to the acceptance probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.rule import KernelRule
from mmspec.sampling.rejection import ratio


@dataclass(frozen=True)
class Beta:
    """Speech speculative decoding (arXiv 2505.15380): a(x) = p/q + beta; 0 is exact."""

    beta: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        return ratio(p, q, x) + self.beta

    def kernel_rule(self, device: torch.device) -> KernelRule:
        return KernelRule("beta", self.beta)
