"""A LlamaGen whose step yields a block of tokens, such as 2 x 2, that are sampled at once.

The tokens of a block are embedded in a part of the width each, and joined to one slot; a slot's features are divided
again into as many vectors, which share the head (Token-Shuffle, Ma et al. 2025, arXiv 2504.17789; a slot predicts the
block that follows it, as in Next Block Prediction, Ren et al. 2025, arXiv 2502.07737). Given the blocks before it, the
tokens of a block do not depend on each other: a block is a column of K tokens, and the loop drafts and verifies blocks
as it does the columns of models with several codebooks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.vision.component import stores_arguments
from mmspec.vision.llamagen.transformer import LlamaGenTransformer

MAX_BLOCK = 8  # tokens per side


class BlockEmbedding(nn.Module):
    """Joins the embeddings of K tokens: int64 [..., K] to [..., dim]."""

    def __init__(self, vocab_size: int, dim: int, count: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim // count)
        self.mix = nn.Linear(dim, dim, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens).flatten(-2)
        return x + self.mix(x)


class BlockHead(nn.Module):
    """Logits [..., K, V] of the K tokens of a block, of features [..., dim]."""

    def __init__(self, vocab_size: int, dim: int, count: int) -> None:
        super().__init__()
        self.split = nn.Linear(dim, count * dim, bias=False)
        self.token = nn.Linear(dim, vocab_size, bias=False)
        self._count = count

    def forward(self, features: Tensor) -> Tensor:
        parts = F.silu(self.split(features)).unflatten(-1, (self._count, -1))
        logits: Tensor = self.token(features[..., None, :] + parts)
        return logits


class BlockTransformer(LlamaGenTransformer):
    """A LlamaGen transformer over blocks of tokens.

    Args:
        block: Rows and columns of a block.
        grid_size: Blocks per side of the image.
        dim: Width, a multiple of the block's tokens.

    The other arguments are those of `LlamaGenTransformer`.

    Raises:
        ArgumentError: If an argument has a value that is not allowed.
    """

    saved_as = "LlamaGenBlockGPT"

    @stores_arguments
    def __init__(
        self,
        block: Sequence[int] = (2, 2),
        grid_size: int = 8,
        vocab_size: int = 16384,
        dim: int = 768,
        n_layer: int = 12,
        n_head: int = 12,
        ffn_dim: int | None = None,
        multiple_of: int = 256,
        model_type: str = "c2i",
        num_classes: int = 1000,
        cls_token_num: int = 1,
        caption_dim: int = 2048,
        rope_base: float = 10000.0,
        norm_eps: float = 1e-5,
        qk_norm: bool = False,
        condition_rope: str = "zero",
        position_embedding: bool = False,
    ) -> None:
        whole = isinstance(block, (list, tuple)) and len(block) == 2 and all(isinstance(side, int) for side in block)
        if not whole or not all(1 <= side <= MAX_BLOCK for side in block) or block[0] * block[1] < 2:
            raise ArgumentError(
                f"block={block!r} is not allowed; it must be two integers from 1 to {MAX_BLOCK}, such as (2, 2)"
            )
        count = block[0] * block[1]
        if dim % count:
            raise ArgumentError(f"dim={dim} must be divisible by the {count} tokens of a block")
        LlamaGenTransformer.__init__.__wrapped__(  # type: ignore[attr-defined]  # stores no arguments again
            self, vocab_size, dim, n_layer, n_head, ffn_dim, multiple_of, model_type, num_classes, cls_token_num,
            caption_dim, grid_size, rope_base, norm_eps, qk_norm, condition_rope, position_embedding,
        )  # fmt: skip
        self.tok_embeddings = BlockEmbedding(vocab_size, dim, count)  # type: ignore[assignment]
        self.output = BlockHead(vocab_size, dim, count)  # type: ignore[assignment]

    @property
    def cell(self) -> tuple[int, ...]:
        rows, columns = self.config.block
        return (rows * columns,)

    @property
    def grid(self) -> tuple[int, int]:
        rows, columns = self.config.block
        return self.config.grid_size * rows, self.config.grid_size * columns

    def steps_of(self, tokens: Tensor) -> Tensor:
        (rows, columns), g = self.config.block, self.config.grid_size
        # [B, block row, row in it, block column, column in it]
        parts = tokens.unflatten(1, (g, rows, g, columns)).transpose(2, 3)
        return parts.flatten(3, 4).flatten(1, 2)

    def in_raster_order(self, steps: Tensor | Sequence[Tensor]) -> Tensor:
        (rows, columns), g = self.config.block, self.config.grid_size
        blocks = torch.full((len(steps), g * g, rows * columns), -1, device=steps[0].device)
        for row, found in zip(blocks, steps, strict=True):
            row[: len(found)] = found
        return blocks.unflatten(2, (rows, columns)).unflatten(1, (g, g)).transpose(2, 3).flatten(1)
