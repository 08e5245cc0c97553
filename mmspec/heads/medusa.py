"""Medusa heads (Cai et al. 2024, arXiv 2401.10774): the tokens further on, each foretold from one feature alone.

Each head is the paper's residual block; what makes logits of it is the target's own head, with which the paper's heads
begin.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn


class MedusaHeads(nn.Module, PyTorchModelHubMixin):
    """Heads on the target's last feature.

    Args:
        vocab_size: The target's tokens, V.
        hidden_size: Its features, D.
        medusa_num_heads: How many; head i foretells the token i + 1 places after the one the feature itself is for.
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
        """Features [..., D] of the target to those the heads foretell, [..., heads, D]."""
        features = features.to(self.dtype)
        return features[..., None, :] + F.silu(torch.einsum("...d,hde->...he", features, self.weight) + self.bias)
