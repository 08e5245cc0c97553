"""Medusa heads (Cai et al. 2024, arXiv 2401.10774): each predicts a later token from the target's last feature alone.

Each head is the paper's residual block. The target's own LM head turns its output into logits; the paper gives every
head an LM head that is initialized as a copy of the target's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.heads.head import Head, ToySizes, randomized


class MedusaHeads(Head):
    """Medusa heads on the target's last feature.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features.
        medusa_num_heads: Number of heads. Head i predicts the token i + 1 positions after the one that the feature
            itself predicts.
    """

    kind = "medusa"

    def __init__(self, vocab_size: int, hidden_size: int, medusa_num_heads: int = 4) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.count = medusa_num_heads
        self.weight = nn.Parameter(torch.zeros(medusa_num_heads, hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(medusa_num_heads, hidden_size))

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def forward(self, features: Tensor) -> Tensor:
        """Predicted features [..., heads, D] from the target's features [..., D]."""
        features = features.to(self.dtype)
        return features[..., None, :] + F.silu(torch.einsum("...d,hde->...he", features, self.weight) + self.bias)

    @classmethod
    def toy(cls, sizes: ToySizes) -> MedusaHeads:
        return randomized(cls(sizes.vocab_size, sizes.hidden_size, 8), 0.35)
