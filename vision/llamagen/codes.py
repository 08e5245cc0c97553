"""What a pipeline asks of an image tokenizer: a diffusers `VQModel`, or a module with its own `decode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mmspec.codebook import Codebook


def is_vq_model(vqvae: Any) -> bool:
    """Whether a tokenizer is a diffusers `VQModel`, whose quantizer is `quantize`."""
    return hasattr(vqvae, "quantize")


def codebook_size(vqvae: Any) -> int:
    """The number of codes of a `VQModel`, or of a tokenizer with `vocab_size`."""
    return int(vqvae.config.num_vq_embeddings if is_vq_model(vqvae) else vqvae.vocab_size)


def read_codebook(vqvae: Any) -> Codebook | None:
    """The codebook of a `VQModel`, or of a tokenizer with `codebook()`; None if there is none."""
    from mmspec.codebook import Codebook

    if is_vq_model(vqvae):
        return Codebook(vqvae.quantize.embedding.weight)
    return Codebook(vqvae.codebook()) if hasattr(vqvae, "codebook") else None


def decode_tokens(vqvae: Any, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
    """Pixels [B, 3, H, W], in about -1..1, of tokens int64 [B, N] in raster order.

    Args:
        vqvae: A `VQModel`, or a tokenizer with `decode(tokens)` or `decode_grid(tokens, grid)`.
        grid: Rows and columns of tokens; None is a square.
    """
    side = round(tokens.shape[1] ** 0.5)
    height, width = grid or (side, side)
    if hasattr(vqvae, "decode_grid"):
        pixels: Tensor = vqvae.decode_grid(tokens, (height, width))
        return pixels
    if not is_vq_model(vqvae):
        return type(vqvae).decode(vqvae, tokens)
    shape = (len(tokens), height, width, vqvae.config.vq_embed_dim)
    with torch.no_grad():
        return vqvae.decode(tokens, force_not_quantize=True, shape=shape).sample
