"""Prompt tokens: learned embeddings that the target reads after a token, where it then predicts later tokens.

Parallel Prompt Decoding (Chen et al. 2024, arXiv 2405.18628): the target itself is the drafter, and m vectors are all
that is trained. Hidden Transfer (Wu et al. 2024, arXiv 2404.12022) has the same pass with later hidden states that are
predicted in the middle of the target, by a linear layer; here they begin as embeddings. The paper's several vectors for
a prompt token, whose logits are averaged, are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.heads.head import Head, ToySizes
from mmspec.heads.layers import check_sizes


class PromptTokens(Head):
    """The embeddings of prompt tokens.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the embeddings that the target reads.
        prompt_tokens: Number of prompt tokens, m. The target's prediction at prompt token i is that of the token i + 1
            positions after the one that it predicts without them.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "prompt"

    def __init__(self, vocab_size: int, hidden_size: int, prompt_tokens: int = 3) -> None:
        super().__init__()
        check_sizes([("prompt_tokens", prompt_tokens, 1, 64)])
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.count = prompt_tokens
        self.weight = nn.Parameter(torch.zeros(prompt_tokens, hidden_size))

    @property
    def device(self) -> torch.device:
        return self.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def init_weights(self, embedding: Tensor | None = None, std: float = 0.02) -> None:
        """Initializes the embeddings for training, with those of random tokens.

        Args:
            embedding: The target's embedding [V', D]; None or another width for normal noise.
            std: Standard deviation of the noise.
        """
        if embedding is None or embedding.shape[1] != self.hidden_size:
            nn.init.normal_(self.weight, std=std)
        else:
            with torch.no_grad():
                self.weight.copy_(embedding[torch.randint(len(embedding), (self.count,))])

    @classmethod
    def toy(cls, sizes: ToySizes) -> PromptTokens:
        return cls(sizes.vocab_size, sizes.hidden_size, 4)
