"""Truncation of a target distribution by min-p and by local typicality, after temperature, top-k and top-p."""

from __future__ import annotations

import torch
from torch import Tensor


def keep_min_p(p: Tensor, min_p: Tensor) -> Tensor:
    """Keeps every token at least `min_p` times as likely as the most likely one, and renormalizes (min-p sampling).

    From Nguyen et al. 2024, arXiv 2407.01082.

    Args:
        p: float32 [..., V].
        min_p: Broadcasts against `p`; 0 keeps all.
    """
    kept = p.masked_fill(p < min_p * p.amax(-1, keepdim=True), 0.0)
    return torch.where(min_p > 0, kept / kept.sum(-1, keepdim=True), p)


def keep_typical(p: Tensor, typical_p: Tensor) -> Tensor:
    """Keeps the tokens whose information is closest to the entropy, up to a mass, and renormalizes (typical sampling).

    From Meister et al. 2022, arXiv 2202.00666. Tokens as far from the entropy as the last one that is kept are kept.

    Args:
        p: float32 [..., V].
        typical_p: Broadcasts against `p`; the mass to keep, 1 keeps all.
    """
    information = -p.log()
    entropy = torch.where(p > 0, p * information, 0.0).sum(-1, keepdim=True)
    distance = (information - entropy).abs()
    ordered, index = distance.sort(dim=-1)
    count = (p.gather(-1, index).cumsum(-1) < typical_p).sum(-1, keepdim=True)
    last = ordered.gather(-1, count.clamp(max=p.shape[-1] - 1))
    kept = p.masked_fill(distance > last, 0.0)
    return torch.where(typical_p < 1, kept / kept.sum(-1, keepdim=True), p)
