"""The MAR backbone (Li et al. 2024, arXiv 2406.11838): an encoder of known latents, a decoder of missing ones.

Each row generates its latents in another order of places. The encoder reads `buffer_size` slots with the class and the
known latents; the decoder reads the encoder's output, with a mask token at every missing place, and computes z, the
condition of the diffusion head, at all places. Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.vision.mar.head import DiffusionHead


class Attention(nn.Module):
    """Bidirectional self-attention; `seen` bool [R, S] masks padding."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None if seen is None else seen[:, None, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """A pre-norm layer of a vision transformer; `seen` bool [R, S] masks padding."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = FeedForward(dim, hidden)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), seen)
        return x + self.mlp(self.norm2(x))


class DiffLoss(nn.Module):
    """The diffusion head under its published name."""

    def __init__(self, token_dim: int, dim: int, depth: int, width: int) -> None:
        super().__init__()
        self.net = DiffusionHead(token_dim, dim, depth, width)


class MARTransformer(ModelMixin, ConfigMixin):
    """Backbone and diffusion head.

    Args:
        grid_size: Places per side of the image; N = grid_size ** 2.
        token_dim: D, numbers per latent.
        encoder_dim: Width of the encoder.
        encoder_depth: Layers of the encoder.
        encoder_heads: Attention heads of the encoder.
        decoder_dim: Width of the decoder.
        decoder_depth: Layers of the decoder.
        decoder_heads: Attention heads of the decoder.
        mlp_ratio: Width of the feed-forward parts relative to that of the layers.
        class_num: Classes.
        buffer_size: Slots of the class.
        head_depth: Residual blocks of the diffusion head.
        head_width: Width of the diffusion head.

    Raises:
        ArgumentError: If a width cannot be divided among the heads.
    """

    config_name = "config.json"
    _repeated_blocks = ["Block", "ResBlock"]

    @register_to_config
    def __init__(
        self,
        grid_size: int = 16,
        token_dim: int = 16,
        encoder_dim: int = 768,
        encoder_depth: int = 12,
        encoder_heads: int = 12,
        decoder_dim: int = 768,
        decoder_depth: int = 12,
        decoder_heads: int = 12,
        mlp_ratio: float = 4.0,
        class_num: int = 1000,
        buffer_size: int = 64,
        head_depth: int = 6,
        head_width: int = 1024,
    ) -> None:
        super().__init__()
        for name, dim, heads in (("encoder", encoder_dim, encoder_heads), ("decoder", decoder_dim, decoder_heads)):
            if not isinstance(heads, int) or heads < 1 or dim % heads:
                raise ArgumentError(f"{name}_heads={heads!r} is not allowed; it must divide {name}_dim={dim}")
        self.places, self.buffer = grid_size**2, buffer_size
        slots = self.places + buffer_size
        self.class_emb = nn.Embedding(class_num, encoder_dim)
        self.fake_latent = nn.Parameter(torch.zeros(1, encoder_dim))
        self.z_proj = nn.Linear(token_dim, encoder_dim)
        self.z_proj_ln = nn.LayerNorm(encoder_dim, eps=1e-6)
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, slots, encoder_dim))
        hidden = int(encoder_dim * mlp_ratio), int(decoder_dim * mlp_ratio)
        self.encoder_blocks = nn.ModuleList(Block(encoder_dim, encoder_heads, hidden[0]) for _ in range(encoder_depth))
        self.encoder_norm = nn.LayerNorm(encoder_dim, eps=1e-6)
        self.decoder_embed = nn.Linear(encoder_dim, decoder_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder_dim))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, slots, decoder_dim))
        self.decoder_blocks = nn.ModuleList(Block(decoder_dim, decoder_heads, hidden[1]) for _ in range(decoder_depth))
        self.decoder_norm = nn.LayerNorm(decoder_dim, eps=1e-6)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, self.places, decoder_dim))
        self.diffloss = DiffLoss(token_dim, decoder_dim, head_depth, head_width)

    def conditions(self, labels: Tensor | None, batch_size: int) -> Tensor:
        """Class embeddings [B, W] of `labels`, int64 [B]; None is the unconditional one."""
        return self.fake_latent.expand(batch_size, -1) if labels is None else self.class_emb(labels)

    def encode(
        self, condition: Tensor, latents: Tensor, known: Tensor, layers: int | None = None
    ) -> tuple[Tensor, ...]:
        """Runs the encoder.

        Args:
            condition: Class embeddings [R, W].
            latents: [R, N, D] in raster order; only the known ones are read.
            known: bool [R, N], the known latents.
            layers: Runs only the first `layers` layers; None runs all.

        Returns:
            The output [R, buffer + V, W] for at most V known latents, the slot of each entry, int64 [R, buffer + V],
            and False where an entry is padding, bool [R, buffer + V].
        """
        rows, count = len(known), int(known.sum(1).max())
        # Known latents first, in raster order.
        order = known.int().argsort(dim=1, descending=True, stable=True)[:, :count]
        buffer = torch.arange(self.buffer, device=known.device).expand(rows, -1)
        slots = torch.cat([buffer, order + self.buffer], dim=1)
        seen = torch.cat([torch.ones_like(buffer, dtype=torch.bool), known.gather(1, order)], dim=1)
        index = order[..., None].expand(-1, -1, latents.shape[-1])
        x = torch.cat([condition[:, None].expand(-1, self.buffer, -1), self.z_proj(latents.gather(1, index))], dim=1)
        x = self.z_proj_ln(x + self.encoder_pos_embed_learned[0, slots])
        mask = None if bool(seen.all()) else seen
        for block in self.encoder_blocks[:layers]:
            x = block(x, mask)
        return self.encoder_norm(x), slots, seen

    def forward(self, condition: Tensor, latents: Tensor, known: Tensor, layers: int | None = None) -> Tensor:
        """The condition of the head at every place, [R, N, W]; see `encode` for the arguments."""
        x, slots, seen = self.encode(condition, latents, known, layers)
        x = torch.where(seen[..., None], self.decoder_embed(x), self.mask_token)
        full = self.mask_token.repeat(len(x), self.places + self.buffer, 1)
        full = full.scatter(1, slots[..., None].expand_as(x), x) + self.decoder_pos_embed_learned
        for block in self.decoder_blocks[:layers]:
            full = block(full)
        return self.decoder_norm(full)[:, self.buffer :] + self.diffusion_pos_embed_learned
