"""Principled coarse-grained acceptance (arXiv 2511.13732): overlapping groups of similar tokens, accepted as groups.

Around each token stands a group, the tokens whose codebook vectors point the same way (cosine above theta). A token
in n groups gives each of them 1/n of its probability; a draft is sent to one of its groups at random and accepted with
min(1, P(group) / Q(group)). Here the random choice is averaged over, which changes nothing in distribution. After a
rejection the paper draws a group, then a token in it; here it is the plain residual. The draft itself is emitted, so
it is not exact by token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.codebook import Codebook, needed, similar
from mmspec.sampling.acceptance import Accept


def overlapping(codebook: Codebook | None, size: int, theta: float) -> Accept:
    """Groups of at most `size` tokens besides the one they stand around; 0 is exact."""
    members = similar(needed(codebook), size, theta)  # int32 [V, G]; symmetric: also the groups a token is in
    groups_of = (members >= 0).sum(-1)  # how many groups each token is in

    def accept(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        table, counts = members.to(x.device), groups_of.to(x.device)
        groups = table[x].long()  # [B, m, G]: the groups of each draft, by the token they stand around
        inside = table[groups.clamp(min=0)].long()  # [B, m, G, G]: their members
        real = inside >= 0
        inside = inside.clamp(min=0)
        flat, shape = inside.flatten(2), inside.shape
        share = real / counts[inside]
        p_group = (p.gather(-1, flat).view(shape) * share).sum(-1)
        q_group = (q.gather(-1, flat).view(shape) * share).sum(-1)
        mine = groups >= 0
        ratio = torch.where(mine & (q_group > 0), p_group / q_group, 0.0).clamp(max=1.0)
        alone = counts[x] == 1
        exact = (p.gather(-1, x[..., None]) / q.gather(-1, x[..., None]))[..., 0]
        return torch.where(alone, exact, ratio.sum(-1) / mine.sum(-1))

    return accept
