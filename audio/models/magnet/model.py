"""The transformer of MAGNeT (arXiv 2401.04577), with the names of its published weights.

It reads all codebooks of all frames at once, masked where they are unknown, and a text by cross-attention. The first
codebook is read with full attention, the others with a window of a few frames around each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class MagnetConfig:
    """Sizes of a MAGNeT.

    Attributes:
        codebooks: Codebooks, K.
        codes: Codes of each, V; the code V stands for a masked place.
        dim: Width, D.
        heads: Attention heads.
        hidden: Width of the feed-forward layers.
        text_dim: Width of the text encoder.
        seconds: Duration of the audio.
        span: Frames that are masked together.
        context: Frames on each side that codebooks after the first attend to; -1 is all.
        attention_bias: Whether attention has biases.
        hidden_bias: Whether feed-forward layers have biases.
        head_bias: Whether the LM heads have biases.
    """

    codebooks: int
    codes: int
    dim: int
    heads: int
    layers: int
    hidden: int
    text_dim: int
    seconds: float
    span: int = 3
    context: int = 5
    attention_bias: bool = False
    hidden_bias: bool = False
    head_bias: bool = False


class MagnetAttention(nn.Module):
    """Multi-head attention; queries, keys and values have one matrix."""

    def __init__(self, config: MagnetConfig) -> None:
        super().__init__()
        dim = config.dim
        self._heads = config.heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * dim)) if config.attention_bias else None
        self.out_proj = nn.Linear(dim, dim, bias=config.attention_bias)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        """Reads [R, T, D] from [R, S, D]; `mask` is bool, broadcast to [R, heads, T, S], True where it may attend."""
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(each, weight, bias).unflatten(-1, (self._heads, -1)).transpose(1, 2)
            for each, weight, bias in zip((x, source, source), self.in_proj_weight.chunk(3), biases, strict=True)
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        attended: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return attended


class MagnetLayer(nn.Module):
    """A layer: self-attention, attention to the text, and a feed-forward network, each after a norm."""

    def __init__(self, config: MagnetConfig) -> None:
        super().__init__()
        self.self_attn, self.cross_attention = MagnetAttention(config), MagnetAttention(config)
        self.linear1 = nn.Linear(config.dim, config.hidden, bias=config.hidden_bias)
        self.linear2 = nn.Linear(config.hidden, config.dim, bias=config.hidden_bias)
        self.norm1, self.norm_cross, self.norm2 = (nn.LayerNorm(config.dim) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None, text: Tensor, text_mask: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.self_attn(normed, normed, mask)
        x = x + self.cross_attention(self.norm_cross(x), text, text_mask)
        out: Tensor = x + self.linear2(F.gelu(self.linear1(self.norm2(x))))
        return out


class MagnetTransformer(nn.Module):
    """A MAGNeT without its text encoder.

    Args:
        config: The sizes.
    """

    def __init__(self, config: MagnetConfig) -> None:
        super().__init__()
        self.config = config
        self.emb = nn.ModuleList([nn.Embedding(config.codes + 1, config.dim) for _ in range(config.codebooks)])
        self.transformer = nn.ModuleDict({"layers": nn.ModuleList([MagnetLayer(config) for _ in range(config.layers)])})
        self.out_norm = nn.LayerNorm(config.dim)
        self.linears = nn.ModuleList(
            [nn.Linear(config.dim, config.codes, bias=config.head_bias) for _ in range(config.codebooks)]
        )
        description = nn.ModuleDict({"output_proj": nn.Linear(config.text_dim, config.dim)})
        self.condition_provider = nn.ModuleDict({"conditioners": nn.ModuleDict({"description": description})})

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.out_norm.weight.device

    def read_text(self, states: Tensor, mask: Tensor) -> Tensor:
        """What cross-attention reads of a text, [B, S, D], from the states [B, S, C] and mask [B, S] of its encoder."""
        project = self.get_submodule("condition_provider.conditioners.description.output_proj")
        text: Tensor = project(states.to(self.out_norm.weight)) * mask[..., None]
        return text

    def forward(self, codes: Tensor, text: Tensor, text_mask: Tensor, stages: Tensor) -> Tensor:
        """Logits of all places, float32 [R, K, T, V]; the arguments are those of `hidden`."""
        x = self.hidden(codes, text, text_mask, stages)
        return torch.stack([head(x) for head in self.linears], dim=1).float()

    def hidden(self, codes: Tensor, text: Tensor, text_mask: Tensor, stages: Tensor) -> Tensor:
        """What the heads read of each frame, [R, T, D].

        Args:
            codes: int64 [R, K, T], V at masked places.
            text: [R, S, D], see `read_text`.
            text_mask: bool [R, S], True where there is text; at least one in each row.
            stages: int64 [R], the codebook that is being filled, which sets the attention.
        """
        frames = codes.shape[-1]
        x = torch.stack([table(codes[:, k]) for k, table in enumerate(self.emb)]).sum(0)
        x = x + positions(frames, self.config.dim, x)
        mask = None
        if self.config.context >= 0 and bool((stages > 0).any()):
            frame = torch.arange(frames, device=codes.device)
            near = (frame[:, None] - frame).abs() <= self.config.context
            mask = (near | (stages == 0)[:, None, None])[:, None]
        for layer in self.get_submodule("transformer.layers").children():
            x = layer(x, mask, text, text_mask[:, None, None])
        normed: Tensor = self.out_norm(x)
        return normed


def positions(count: int, dim: int, like: Tensor) -> Tensor:
    """Sinusoidal positions [count, D] of the dtype and device of `like`, cosines first."""
    place = torch.arange(count, device=like.device, dtype=like.dtype)[:, None]
    half = dim // 2
    period = 10_000.0 ** (torch.arange(half, device=like.device, dtype=like.dtype) / (half - 1))
    return torch.cat([torch.cos(place / period), torch.sin(place / period)], dim=-1)
