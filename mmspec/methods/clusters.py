"""Static groups: the codebook is divided into k-means clusters once, and a draft is accepted with its cluster.

a(x) = P(cluster of x) / Q(cluster of x), and the draft itself is emitted. Grouped speculative decoding (arXiv
2508.07747) compares its groups, which follow p, with static ones like these; PCG (arXiv 2511.13732) has overlapping
ones. A cluster divides the vocabulary, so that the table is one number per token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.codebook import Codebook, kmeans, require_codebook
from mmspec.sampling.acceptance import Accept
from mmspec.sampling.rejection import ratio


def clusters(codebook: Codebook | None, size: int) -> Accept:
    """The acceptance function for clusters of `size` tokens on average; 0 and 1 are exact."""
    codebook = require_codebook(codebook)
    if size < 2:
        return ratio
    cluster_of = kmeans(codebook, size).long()  # int64 [V]

    def accept(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        table = cluster_of.to(x.device)
        inside = table == table[x][..., None]  # bool [B, m, V]
        return torch.where(inside, p, 0.0).sum(-1) / torch.where(inside, q, 0.0).sum(-1)

    return accept
