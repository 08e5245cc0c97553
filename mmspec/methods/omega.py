"""Omega: p/q times a factor that decays along the window."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.rule import KernelRule
from mmspec.sampling.rejection import ratio


@dataclass(frozen=True)
class Omega:
    """COOL-SD (arXiv 2601.09212): a(x) = w_i p/q with w_i = delta exp(-decay i) at slot i; delta = 0 is exact.

    The paper's factor may fall below 1, where it accepts less often than the exact rule; here it is at least 1.
    """

    delta: float
    decay: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        slots = torch.arange(x.shape[-1], device=x.device)
        return (self.delta * (-self.decay * slots).exp()).clamp(min=1.0) * ratio(p, q, x)

    def kernel_rule(self, device: torch.device) -> KernelRule:
        return KernelRule("omega", self.delta, self.decay)
