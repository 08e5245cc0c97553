"""Top-m acceptance, as in the decoders of speech models (arXiv 2508.06262)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.kernels.rule import KernelRule
from mmspec.sampling.rejection import ratio


@dataclass(frozen=True)
class TopM:
    """A draft among the m most likely tokens of p is accepted, others as by the exact rule; m = 0 is exact."""

    m: int

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        p_x = p.gather(-1, x[..., None])
        better = (p > p_x).sum(-1)
        return torch.where((better < self.m) & (p_x[..., 0] > 0), 1.0, ratio(p, q, x))

    def kernel_rule(self, device: torch.device) -> KernelRule:
        return KernelRule("top-m", group=self.m)
