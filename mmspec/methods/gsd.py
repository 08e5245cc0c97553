"""Grouped speculative decoding (GSD; So et al. 2025, arXiv 2508.07747): accept the draft's group, emit the draft.

The group of a draft x is the `group` tokens next to it when the vocabulary is sorted by p, half of them more likely and
half less, without those that differ too much from x in probability or in the codebook:
a(x) = sum of p over the group / sum of q over the group. Groups overlap, so the outcome is not exact, not even by
group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.codebook import Codebook
from mmspec.errors import ArgumentError
from mmspec.kernels.rule import KernelRule


@dataclass(frozen=True, eq=False)
class Grouped:
    """The acceptance function.

    Attributes:
        codebook: The codebook of the tokens, needed if `distance` is above 0.
        group: The number of tokens next to x in rank that may be members; 0 is exact.
        probability: The members' probabilities differ from that of x by less than this.
        distance: The members' squared distance from x in the codebook is below this; 0 admits any distance.
    """

    codebook: Codebook | None
    group: int
    probability: float
    distance: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        index = x[..., None]
        order = p.argsort(dim=-1, descending=True, stable=True)
        rank = (order == index).long().argmax(-1, keepdim=True)
        offsets = torch.arange(-(self.group // 2), self.group - self.group // 2 + 1, device=x.device)
        ranks = rank + offsets  # [B, m, group + 1]
        inside = (ranks >= 0) & (ranks < p.shape[-1])
        members = order.gather(-1, ranks.clamp(0, p.shape[-1] - 1))
        p_members = p.gather(-1, members)
        near = (p_members - p.gather(-1, index)).abs() < self.probability
        if self.distance and self.codebook is not None:
            vectors, known = self.codebook.vectors, self.codebook.known
            gap = vectors[members] - vectors[index]
            near &= (gap.square().sum(-1) < self.distance) & known[members] & known[index]
        kept = inside & (near | (members == index))
        return (p_members * kept).sum(-1) / (q.gather(-1, members) * kept).sum(-1)

    def kernel_rule(self, device: torch.device) -> KernelRule:
        rule = "gsd", self.probability, self.distance, self.group
        if self.codebook is None or not self.distance:
            return KernelRule(*rule)
        return KernelRule(*rule, vectors=self.codebook.vectors.to(device), known=self.codebook.known.to(device))


def grouped(codebook: Codebook | None, group: int, probability: float, distance: float) -> Grouped:
    """GSD with the codebook of a model.

    Raises:
        ArgumentError: If `distance` is above 0 and the model has no codebook.
    """
    if distance and codebook is None:
        raise ArgumentError(f"gsd:distance={distance} needs the model's codebook, and this model has none; use 0")
    return Grouped(codebook, group, probability, distance)
