"""The VAR transformer (Tian et al. 2024, arXiv 2404.02905); parameter names are those of the published checkpoints.

A token map of side n is n * n tokens that are sampled at once, given all smaller maps. The input of a map is the image
so far at its size; of the first one, the class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.errors import ArgumentError

SIDES_256 = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)
SIDES_512 = (1, 2, 3, 4, 6, 9, 13, 18, 24, 32)
_EPS = 1e-6
_MAX_SCALE = math.log(100)

# Keys and values of a layer, [R, heads, n, head_dim]; None before the first map.
LayerCache = tuple[Tensor, Tensor] | None


class Attention(nn.Module):
    """Self-attention with a bias of queries and values only; l2_norm normalizes queries and keys."""

    def __init__(self, dim: int, heads: int, l2_norm: bool) -> None:
        super().__init__()
        self.heads, self.l2_norm = heads, l2_norm
        if l2_norm:
            self.scale_mul_1H11 = nn.Parameter(torch.full((1, heads, 1, 1), 4.0).log())
        self.mat_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, cache: LayerCache, mask: Tensor | None) -> tuple[Tensor, LayerCache]:
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        qkv = F.linear(x, self.mat_qkv.weight, bias).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scale = 0.25 / math.sqrt(q.shape[-1])
        if self.l2_norm:
            q = F.normalize(q, dim=-1) * self.scale_mul_1H11.clamp_max(_MAX_SCALE).exp()
            k, scale = F.normalize(k, dim=-1), 1.0
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        return self.proj(out.transpose(1, 2).flatten(2)), (k, v)


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Block(nn.Module):
    """A layer whose norms are scaled, shifted and gated by the class; `shared` takes that from a shared layer."""

    def __init__(self, dim: int, heads: int, hidden: int, l2_norm: bool, shared: bool) -> None:
        super().__init__()
        self.attn = Attention(dim, heads, l2_norm)
        self.ffn = FeedForward(dim, hidden)
        if shared:
            self.ada_gss = nn.Parameter(torch.randn(1, 1, 6, dim) / dim**0.5)
        else:
            self.ada_lin = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(
        self, x: Tensor, condition: Tensor, cache: LayerCache, mask: Tensor | None
    ) -> tuple[Tensor, LayerCache]:
        if hasattr(self, "ada_gss"):
            parts = self.ada_gss + condition
        else:
            parts = self.ada_lin(condition).unflatten(-1, (1, 6, -1))
        gate1, gate2, scale1, scale2, shift1, shift2 = parts.unbind(2)
        out, cache = self.attn(_normed(x, scale1, shift1), cache, mask)
        x = x + out * gate1
        return x + self.ffn(_normed(x, scale2, shift2)) * gate2, cache


class Norm(nn.Module):
    """The norm before the head, scaled and shifted by the class."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ada_lin = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.ada_lin(condition).unflatten(-1, (1, 2, -1)).unbind(2)
        return _normed(x, scale, shift)


def _normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=_EPS) * (scale + 1) + shift


class VARTransformer(ModelMixin, ConfigMixin):
    """A VAR.

    Args:
        sides: Tokens per side of each map, ascending.
        dim: Width.
        depth: Layers.
        heads: Attention heads.
        vocab_size: V, the codes of the tokenizer.
        code_dim: Numbers per code.
        mlp_ratio: Width of the feed-forward parts relative to `dim`.
        l2_norm: Whether queries and keys are normalized, as in all published models.
        shared_aln: Whether the layers share the linear layer of the class, as in the published model of 512 pixels.

    Raises:
        ArgumentError: If `heads` does not divide `dim`.
    """

    config_name = "config.json"
    _repeated_blocks = ["Block"]

    @register_to_config
    def __init__(
        self,
        sides: Sequence[int] = SIDES_256,
        dim: int = 1024,
        depth: int = 16,
        heads: int = 16,
        vocab_size: int = 4096,
        code_dim: int = 32,
        num_classes: int = 1000,
        mlp_ratio: float = 4.0,
        l2_norm: bool = True,
        shared_aln: bool = False,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ArgumentError(f"heads={heads!r} is not allowed; it must divide dim={dim}")
        self.sides = tuple(sides)
        self.ends = [sum(side**2 for side in self.sides[: i + 1]) for i in range(len(self.sides))]
        self.word_embed = nn.Linear(code_dim, dim)
        self.class_emb = nn.Embedding(num_classes + 1, dim)
        self.pos_start = nn.Parameter(torch.zeros(1, self.sides[0] ** 2, dim))
        self.pos_1LC = nn.Parameter(torch.zeros(1, self.ends[-1], dim))
        self.lvl_embed = nn.Embedding(len(self.sides), dim)
        if shared_aln:
            self.shared_ada_lin = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        hidden = round(dim * mlp_ratio)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden, l2_norm, shared_aln) for _ in range(depth))
        self.head_nm = Norm(dim)
        self.head = nn.Linear(dim, vocab_size)

    def classes(self, labels: Tensor | None, batch_size: int) -> Tensor:
        """Embeddings [B, dim] of classes int64 [B]; None is the unconditional one."""
        if labels is None:
            labels = torch.full((batch_size,), self.config.num_classes, device=self.device)
        embedding: Tensor = self.class_emb(labels)
        return embedding

    def forward(
        self, condition: Tensor, maps: Sequence[Tensor], first: int, cache: list[LayerCache]
    ) -> tuple[Tensor, list[LayerCache]]:
        """Reads the inputs of consecutive maps.

        Args:
            condition: [R, dim]; see `classes`.
            maps: The inputs of maps `first` and the following, [R, side * side, code_dim] each; that of map 0 is
                ignored.
            first: The first map.
            cache: One per layer, with the maps before `first`; [] before map 0.

        Returns:
            Logits float32 [R, n, V] at all places of these maps, and the cache with them.
        """
        begin, inputs = (self.ends[first - 1] if first else 0), []
        for i, content in enumerate(maps, start=first):
            if i:
                inputs.append(self.word_embed(content.to(self.dtype)))
            else:
                inputs.append(condition[:, None] + self.pos_start)
        counts = [self.sides[i] ** 2 for i in range(first, first + len(maps))]
        level = torch.arange(first, first + len(maps), device=self.device).repeat_interleave(
            torch.tensor(counts, device=self.device)
        )
        x = torch.cat(inputs, dim=1) + self.lvl_embed(level) + self.pos_1LC[:, begin : begin + sum(counts)]
        mask = None
        if len(maps) > 1:
            seen = level[:, None] >= level
            mask = torch.cat([seen.new_ones(len(level), begin), seen], dim=1)
        shared = self.shared_ada_lin(condition).unflatten(-1, (1, 6, -1)) if hasattr(self, "shared_ada_lin") else None
        after: list[LayerCache] = []
        for i, block in enumerate(self.blocks):
            x, kept = block(x, condition if shared is None else shared, cache[i] if cache else None, mask)
            after.append(kept)
        return self.head(self.head_nm(x, condition)).float(), after
