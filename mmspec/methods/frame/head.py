"""The frame head: multi-token prediction of whole frames, for models whose frames have a depth decoder.

The form is that of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2), with a frame in place of a
token: from the feature of one frame and its codes, the head predicts the state of the next frame. The codes of a frame
are predicted from its state and the sum of the embeddings of its codes so far, by one MLP that all codebooks share; so
a draft of a frame needs neither the backbone nor the depth decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmspec.heads.head import Head, ToySizes, randomized
from mmspec.heads.layers import MLP, check_sizes, norm


class FrameHead(Head):
    """A frame head.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features.
        codebooks: Tokens of a frame, K.
        width: Width of the head's states, S.
        intermediate_size: Width of its MLPs.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "frame"

    def __init__(self, vocab_size: int, hidden_size: int, codebooks: int, width: int, intermediate_size: int) -> None:
        super().__init__()
        check_sizes([("codebooks", codebooks, 2, 256), ("width", width, 1, 2**14)])
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.codebooks = codebooks
        self.width = width
        self.embed_tokens = nn.Embedding(codebooks * vocab_size, width)
        self.embed_books = nn.Embedding(codebooks, width)
        self.feature_norm = nn.RMSNorm(hidden_size)
        self.feature_proj = nn.Linear(hidden_size, width, bias=False)
        self.state_norm, self.frame_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.merge = nn.Linear(2 * width, width, bias=False)
        self.next_norm = nn.RMSNorm(width)
        self.next_mlp = MLP(width, intermediate_size)
        self.code_norm = nn.RMSNorm(width)
        self.code_mlp = MLP(width, intermediate_size)
        self.norm = nn.RMSNorm(width)
        self.lm_heads = nn.Parameter(torch.zeros(codebooks, vocab_size, width))

    @property
    def device(self) -> torch.device:
        return self.lm_heads.device

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_heads.dtype

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training."""
        for name, p in self.named_parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=1.0 / self.width**0.5 if name.startswith("embed") else std)

    def start(self, features: Tensor) -> Tensor:
        """The states [..., S] of frames, from the target's features [..., D] of these frames."""
        state: Tensor = self.feature_proj(norm(self.feature_norm, features))
        return state

    def embed(self, tokens: Tensor, books: Tensor) -> Tensor:
        """Embeddings [..., S] of tokens int64 [...] of codebooks int64 [...]."""
        embeds: Tensor = self.embed_tokens(tokens + books * self.vocab_size)
        return embeds

    def advance(self, state: Tensor, frame: Tensor) -> Tensor:
        """The states [..., S] of the next frames, from those of frames and the sums of their embeddings, [..., S]."""
        x = self.merge(torch.cat([norm(self.state_norm, state), norm(self.frame_norm, frame)], dim=-1))
        x = state + x
        next_state: Tensor = x + self.next_mlp(norm(self.next_norm, x))
        return next_state

    def hidden(self, state: Tensor, before: Tensor, books: Tensor) -> Tensor:
        """The inputs [..., S] of the LM heads.

        Args:
            state: The states of frames, [..., S].
            before: The sums of the embeddings of their tokens before the one that is predicted, [..., S].
            books: int64 [...], the codebook of that token.
        """
        x = state + before + self.embed_books(books)
        return norm(self.norm, x + self.code_mlp(norm(self.code_norm, x)))

    def logits(self, hidden: Tensor, book: int) -> Tensor:
        """Logits [..., V] of one codebook, of `hidden` [..., S]."""
        return hidden @ self.lm_heads[book].T

    @classmethod
    def toy(cls, sizes: ToySizes) -> FrameHead:
        return randomized(cls(sizes.vocab_size, sizes.hidden_size, sizes.frame, 8, 24), 0.5)
