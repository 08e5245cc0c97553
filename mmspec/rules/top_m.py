"""Top-m acceptance."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.sampling.acceptance import Accept
from mmspec.sampling.rejection import ratio


def top_m(m: int) -> Accept:
    """Top-m acceptance (as in the speech models' decoders): x among the m likeliest of p is accepted; 0 is exact."""

    def accept(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        p_x = p.gather(-1, x[..., None])
        better = (p > p_x).sum(-1)
        return torch.where((better < m) & (p_x[..., 0] > 0), 1.0, ratio(p, q, x))

    return accept
