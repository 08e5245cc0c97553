"""Hydra heads: each predicts a later token from the target's last feature and from the drafts before that token.

Hydra (Ankner et al. 2024, arXiv 2402.05109) lets each Medusa head read the embeddings of the tokens since the feature;
Clover (Xiao et al. 2024, arXiv 2405.00263) does it with a recurrent state. Here each head is Hydra's: an MLP on the
feature and all of these embeddings, side by side. The target's own LM head turns its output into logits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.heads.head import Head, ToySizes, randomized
from mmspec.heads.layers import check_sizes, norm


class HydraHeads(Head):
    """Hydra heads on the target's last feature and the tokens since then.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features.
        intermediate_size: Width of the MLPs.
        hydra_num_heads: Number of heads. Head i predicts the token i + 1 positions after the one that the feature
            itself predicts, and reads the i + 1 tokens in between.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "hydra"

    def __init__(self, vocab_size: int, hidden_size: int, intermediate_size: int, hydra_num_heads: int = 4) -> None:
        super().__init__()
        check_sizes([("hydra_num_heads", hydra_num_heads, 1, 1023)])
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.count = hydra_num_heads
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.feature_norm, self.token_norm = nn.RMSNorm(hidden_size), nn.RMSNorm(hidden_size)
        inputs = [(2 + i) * hidden_size for i in range(hydra_num_heads)]
        self.up_proj = nn.ModuleList(nn.Linear(width, intermediate_size) for width in inputs)
        self.down_proj = nn.ModuleList(nn.Linear(intermediate_size, hidden_size, bias=False) for _ in inputs)

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training; the heads start by predicting the feature that they read."""
        for name, p in self.named_parameters():
            if name.startswith("down_proj") or name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=std)

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Predicted features [..., D] after tokens, by the head that reads as many.

        Args:
            features: The target's features that the first of the tokens were sampled from, [..., D].
            tokens: int64 [..., n], n from 1 to the number of heads.
        """
        features, head = features.to(self.dtype), tokens.shape[-1] - 1
        embeds = norm(self.token_norm, self.embed_tokens(tokens)).flatten(-2)
        x = torch.cat([norm(self.feature_norm, features), embeds], dim=-1)
        predicted: Tensor = features + self.down_proj[head](F.silu(self.up_proj[head](x)))
        return predicted

    @classmethod
    def toy(cls, sizes: ToySizes) -> HydraHeads:
        return randomized(cls(sizes.vocab_size, sizes.hidden_size, 24, 8), 0.5)
