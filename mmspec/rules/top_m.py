"""Top-m acceptance, as in the decoders of speech models (arXiv 2508.06262)."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.sampling.acceptance import Accept
from mmspec.sampling.rejection import ratio


def top_m(m: int) -> Accept:
    """A draft among the m most likely tokens of p is accepted, others as by the exact rule; m = 0 is exact."""

    def accept(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        p_x = p.gather(-1, x[..., None])
        better = (p > p_x).sum(-1)
        return torch.where((better < m) & (p_x[..., 0] > 0), 1.0, ratio(p, q, x))

    return accept
