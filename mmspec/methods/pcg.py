"""Principled coarse-grained acceptance (PCG, arXiv 2511.13732): overlapping groups of similar tokens.

The group around a token is the set of tokens whose codebook vectors have a cosine above theta with its own. A token in
n groups gives each of them 1/n of its probability; a draft is assigned to one of its groups at random and accepted with
min(1, P(group) / Q(group)). Here the acceptance probability is averaged over that random choice, which leaves the
distribution the same. After a rejection the paper samples a group, then a token in it; here the plain residual is used.
The draft itself is emitted, so the rule is not exact by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.codebook import Codebook, require_codebook, similar
from mmspec.kernels.rule import KernelRule


@dataclass(frozen=True, eq=False)
class Overlapping:
    """The acceptance function.

    Attributes:
        members: int32 [V, G], the group around each token, filled with -1 at the end; by symmetry also the centers of
            the groups that the token is in.
        counts: int64 [V], the number of groups that each token is in.
    """

    members: Tensor
    counts: Tensor

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        table, counts = self.members.to(x.device), self.counts.to(x.device)
        groups = table[x].long()  # [B, m, G]: the groups of each draft, by the token in their center
        inside = table[groups.clamp(min=0)].long()  # [B, m, G, G]: their members
        valid = inside >= 0
        inside = inside.clamp(min=0)
        flat, shape = inside.flatten(2), inside.shape
        share = valid / counts[inside]
        p_group = (p.gather(-1, flat).view(shape) * share).sum(-1)
        q_group = (q.gather(-1, flat).view(shape) * share).sum(-1)
        exists = groups >= 0
        ratio = torch.where(exists & (q_group > 0), p_group / q_group, 0.0).clamp(max=1.0)
        alone = counts[x] == 1
        exact = (p.gather(-1, x[..., None]) / q.gather(-1, x[..., None]))[..., 0]
        return torch.where(alone, exact, ratio.sum(-1) / exists.sum(-1))

    def kernel_rule(self, device: torch.device) -> KernelRule:
        shares = 1 / self.counts[:, None].float()
        return KernelRule("pcg", near=self.members.to(device), vectors=shares.to(device))


def overlapping(codebook: Codebook | None, size: int, theta: float) -> Overlapping:
    """PCG with groups of at most `size` tokens besides the one in their center; 0 is exact."""
    members = similar(require_codebook(codebook), size, theta)
    return Overlapping(members, (members >= 0).sum(-1))
