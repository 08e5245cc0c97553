"""Grouped speculative decoding (So et al. 2025, arXiv 2508.07747): accept the draft's group, emit the draft.

The group of a draft x are the `group` tokens next to it when the vocabulary is sorted by p, half of them more likely
and half less, without those that differ too much from x in probability or in the codebook:
a(x) = sum of p over the group / sum of q over the group. Groups overlap, so nothing is exact about it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.codebook import Codebook
from mmspec.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Grouped:
    """The rule; `group` 0 is exact, and `distance` 0 leaves the codebook out of it."""

    codebook: Codebook | None
    group: int
    probability: float
    distance: float

    def __call__(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        index = x[..., None]
        order = p.argsort(dim=-1, descending=True, stable=True)
        rank = (order == index).long().argmax(-1, keepdim=True)
        offsets = torch.arange(-(self.group // 2), self.group - self.group // 2 + 1, device=x.device)
        place = rank + offsets  # [B, m, group + 1]
        inside = (place >= 0) & (place < p.shape[-1])
        members = order.gather(-1, place.clamp(0, p.shape[-1] - 1))
        p_members = p.gather(-1, members)
        near = (p_members - p.gather(-1, index)).abs() < self.probability
        if self.distance and self.codebook is not None:
            vectors, known = self.codebook.vectors, self.codebook.known
            gap = vectors[members] - vectors[index]
            near &= (gap.square().sum(-1) < self.distance) & known[members] & known[index]
        kept = inside & (near | (members == index))
        return (p_members * kept).sum(-1) / (q.gather(-1, members) * kept).sum(-1)


def grouped(codebook: Codebook | None, group: int, probability: float, distance: float) -> Grouped:
    """The rule for a model.

    Raises:
        ArgumentError: When distances are asked for and it has no codebook.
    """
    if distance and codebook is None:
        raise ArgumentError(f"gsd:distance={distance} needs the model's codebook, and this model brings none; use 0")
    return Grouped(codebook, group, probability, distance)
