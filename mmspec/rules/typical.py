"""Typical acceptance."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.sampling.acceptance import Accept
from mmspec.sampling.rejection import ratio


def typical(epsilon: float, alpha: float) -> Accept:
    """Typical acceptance (Medusa, arXiv 2401.10774): p(x) >= min(epsilon, alpha exp(-H(p))) is accepted.

    `epsilon` 0 is exact; the threshold counts only where it is above 0.
    """

    def accept(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        entropy = torch.special.entr(p).sum(-1)
        threshold = (alpha * (-entropy).exp()).clamp(max=epsilon)
        likely = (p.gather(-1, x[..., None])[..., 0] >= threshold) & (threshold > 0)
        return torch.where(likely, 1.0, ratio(p, q, x))

    return accept
