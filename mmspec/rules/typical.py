"""Typical acceptance (Medusa, Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.sampling.acceptance import Accept
from mmspec.sampling.rejection import ratio


def typical(epsilon: float, alpha: float) -> Accept:
    """A draft with p(x) >= min(epsilon, alpha exp(-H(p))) is accepted, others as by the exact rule.

    The threshold applies only if it is above 0; epsilon = 0 is exact.
    """

    def accept(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        entropy = torch.special.entr(p).sum(-1)
        threshold = (alpha * (-entropy).exp()).clamp(max=epsilon)
        likely = (p.gather(-1, x[..., None])[..., 0] >= threshold) & (threshold > 0)
        return torch.where(likely, 1.0, ratio(p, q, x))

    return accept
