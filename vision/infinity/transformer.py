"""The Infinity transformer (Han et al. 2024, arXiv 2412.04431); parameter names are those of the published checkpoints.

As in VAR, a map of h x w places is sampled at once, given all smaller maps, and its input is the image so far at its
size. A token is d bits, each with its own two logits, so that there is no vocabulary of 2**d entries. Texts are read by
cross-attention, and a pooled text scales the norms.
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
from mmspec.vision.var.transformer import FeedForward, LayerCache

# Sides of the maps of square images; the published models have the first 7 (256 pixels), 10, 12 or all (1024 pixels).
SQUARE = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)
LEVELS, _EPS, _MAX_SCALE, _ROPE_BASE = 15, 1e-6, math.log(100), 10000.0

Size = tuple[int, int]


class RMSNorm(nn.Module):
    """A norm of float32 with the epsilon of the original."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + _EPS) * self.weight).to(x.dtype)


def rotary(sizes: Sequence[Size], extent: Size, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines float32 [L, head_dim / 2] of all places; maps of all sizes cover the same `extent`.

    Args:
        sizes: Height and width of each map.
        extent: Height and width of the largest map that the model was trained on.
        head_dim: A multiple of 4; the first half turns by the row, the second by the column.
    """
    frequencies = 1 / _ROPE_BASE ** (torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2))
    angles = []
    for height, width in sizes:
        rows = (torch.arange(height) * (extent[0] / height)).round()
        columns = (torch.arange(width) * (extent[1] / width)).round()
        by_row = (rows[:, None] * frequencies)[:, None].expand(-1, width, -1)
        by_column = (columns[:, None] * frequencies)[None].expand(height, -1, -1)
        angles.append(torch.cat([by_row, by_column], dim=-1).flatten(0, 1))
    angle = torch.cat(angles)
    return angle.cos(), angle.sin()


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates neighboring pairs of features [..., L, head_dim]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([cos * a - sin * b, sin * a + cos * b], dim=-1).flatten(-2)


class SelfAttention(nn.Module):
    """Self-attention with normalized queries and keys."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale_mul_1H11 = nn.Parameter(torch.full((1, heads, 1, 1), 4.0).log())
        self.mat_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache, mask: Tensor | None
    ) -> tuple[Tensor, LayerCache]:
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        q, k, v = F.linear(x, self.mat_qkv.weight, bias).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = _turn(F.normalize(q, dim=-1) * self.scale_mul_1H11.clamp_max(_MAX_SCALE).exp(), cos, sin).to(v.dtype)
        k = _turn(F.normalize(k, dim=-1), cos, sin).to(v.dtype)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        return self.proj(out.transpose(1, 2).flatten(2)), (k, v)


class CrossAttention(nn.Module):
    """Attention to a text; `pools` has one learned query in place of those of places."""

    def __init__(self, dim: int, text_dim: int, heads: int, pools: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.mat_q: nn.Parameter | nn.Linear
        self.mat_q = nn.Parameter(torch.zeros(1, heads, dim // heads)) if pools else nn.Linear(dim, dim)
        self.mat_kv = nn.Linear(text_dim, 2 * dim, bias=False)
        self.v_bias = nn.Parameter(torch.zeros(dim))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor | None, text: Tensor, mask: Tensor) -> Tensor:
        """[R, L, dim] of [R, L, dim], or [R, 1, dim]; `text` is [R, T, text_dim] and `mask` bool [R, T]."""
        bias = torch.cat([torch.zeros_like(self.v_bias), self.v_bias])
        k, v = F.linear(text, self.mat_kv.weight, bias).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if isinstance(self.mat_q, nn.Parameter):
            q = self.mat_q.to(k.dtype).expand(len(text), -1, -1)[:, :, None]
        else:
            q = self.mat_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        return self.proj(out.transpose(1, 2).flatten(2))


class TextPool(nn.Module):
    """The pooled text, [R, dim]."""

    def __init__(self, text_dim: int, dim: int) -> None:
        super().__init__()
        head_dim = 64 if dim > 4096 else 128  # of the text, by which the original counts the heads
        self.ca = CrossAttention(dim, text_dim, max(text_dim // head_dim, 1), pools=True)

    def forward(self, text: Tensor, mask: Tensor) -> Tensor:
        pooled: Tensor = self.ca(None, text, mask)[:, 0]
        return pooled


class Block(nn.Module):
    """A layer: self-attention, cross-attention to the text, feed-forward."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.sa = SelfAttention(dim, heads)
        self.ca = CrossAttention(dim, dim, heads)
        self.ffn = FeedForward(dim, hidden)
        self.ca_norm = nn.LayerNorm(dim, eps=_EPS)
        self.ada_gss = nn.Parameter(torch.randn(1, 1, 6, dim) / dim**0.5)

    def forward(
        self, x: Tensor, condition: Tensor, text: Tensor, text_mask: Tensor, cos: Tensor, sin: Tensor,
        cache: LayerCache, mask: Tensor | None,
    ) -> tuple[Tensor, LayerCache]:  # fmt: skip
        gate1, gate2, scale1, scale2, shift1, shift2 = (self.ada_gss + condition).unbind(2)
        out, cache = self.sa(_normed(x, scale1, shift1), cos, sin, cache, mask)
        x = x + out * gate1
        x = x + self.ca(self.ca_norm(x), text, text_mask)
        return x + self.ffn(_normed(x, scale2, shift2)) * gate2, cache


class HeadNorm(nn.Module):
    """The norm before the head, scaled and shifted by the pooled text."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ada_lin = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))

    def forward(self, x: Tensor, pooled: Tensor) -> Tensor:
        scale, shift = self.ada_lin(pooled).unflatten(-1, (1, 2, -1)).unbind(2)
        return _normed(x, scale, shift)


def _normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=_EPS) * (scale + 1) + shift


class InfinityTransformer(ModelMixin, ConfigMixin):
    """An Infinity.

    Args:
        dim: Width.
        depth: Layers.
        heads: Attention heads.
        hidden: Width of the feed-forward parts.
        bits: Bits of a code of the tokenizer, d.
        text_dim: Features of a text.
        text_length: The longest text.
        patch: Codes per side of a place: 2 if the model joins 2 x 2 codes, as the one of 8 B parameters does.

    Raises:
        ArgumentError: If `heads` does not fit `dim`.
    """

    config_name = "config.json"
    _repeated_blocks = ["Block"]

    @register_to_config
    def __init__(
        self,
        dim: int = 2048,
        depth: int = 32,
        heads: int = 16,
        hidden: int = 8192,
        bits: int = 32,
        text_dim: int = 2048,
        text_length: int = 512,
        patch: int = 1,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % (4 * heads):
            raise ArgumentError(f"heads={heads!r} is not allowed; 4 * heads must divide dim={dim}")
        if patch not in (1, 2):
            raise ArgumentError(f"patch={patch!r} is not allowed; use 1 or 2")
        self.places_bits = bits * patch**2
        self.cfg_uncond = nn.Parameter(torch.randn(text_length, text_dim) / text_dim**0.5)
        self.text_norm = RMSNorm(text_dim)
        self.text_proj_for_sos = TextPool(text_dim, dim)
        self.text_proj_for_ca = nn.Sequential(
            nn.Linear(text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.pos_start = nn.Parameter(torch.zeros(1, 1, dim))
        self.lvl_embed = nn.Embedding(LEVELS, dim)
        self.word_embed = nn.Linear(self.places_bits, dim)
        self.shared_ada_lin = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(dim, heads, hidden) for _ in range(depth))
        self.head_nm = HeadNorm(dim)
        self.head = nn.Linear(dim, 2 * self.places_bits)

    def read_texts(self, texts: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """What the layers read of texts: pooled [R, dim], features [R, T, dim] and their mask bool [R, T].

        Args:
            texts: Features [T_row, text_dim] each.
        """
        padded = nn.utils.rnn.pad_sequence(list(texts), batch_first=True).to(self.device, self.dtype)
        lengths = torch.tensor([len(text) for text in texts], device=self.device)
        mask = torch.arange(padded.shape[1], device=self.device) < lengths[:, None]
        normed = self.text_norm(padded)
        return self.text_proj_for_sos(normed, mask), self.text_proj_for_ca(normed), mask

    def forward(
        self,
        read: tuple[Tensor, Tensor, Tensor],
        maps: Sequence[Tensor],
        sizes: Sequence[Size],
        extent: Size,
        first: int,
        cache: list[LayerCache],
    ) -> tuple[Tensor, list[LayerCache]]:
        """Reads the inputs of consecutive maps.

        Args:
            read: Of `read_texts`.
            maps: The inputs of maps `first` and the following, [R, h * w, d] each; that of map 0 is ignored.
            sizes: Height and width of all maps.
            first: The first map.
            cache: One per layer, with the maps before `first`; [] before map 0.

        Returns:
            Logits float32 [R, n, d, 2] of the bits of all places of these maps, and the cache with them.
        """
        pooled, text, text_mask = read
        inputs = [
            self.word_embed(content.to(self.dtype)) if i else pooled[:, None] + self.pos_start
            for i, content in enumerate(maps, start=first)
        ]
        counts = [height * width for height, width in sizes]
        begin, last = sum(counts[:first]), first + len(maps)
        levels = torch.arange(first, last, device=self.device)
        level = levels.repeat_interleave(torch.tensor(counts[first:last], device=self.device))
        cos, sin = (
            part[begin : begin + len(level)].to(self.device)
            for part in rotary(sizes[:last], extent, self.config.dim // self.config.heads)
        )
        mask = None
        if len(maps) > 1:
            seen = level[:, None] >= level
            mask = torch.cat([seen.new_ones(len(level), begin), seen], dim=1)
        x = torch.cat(inputs, dim=1) + self.lvl_embed(level)
        condition = self.shared_ada_lin(pooled).unflatten(-1, (1, 6, -1))
        after: list[LayerCache] = []
        for i, block in enumerate(self.blocks):
            x, kept = block(x, condition, text, text_mask, cos, sin, cache[i] if cache else None, mask)
            after.append(kept)
        logits: Tensor = self.head(self.head_nm(x, pooled)).float()
        return logits.unflatten(-1, (-1, 2)), after
