"""The transformer of Cosmos-1 (arXiv 2501.03575): causal over a video's tokens, with cross-attention to a text or not.

Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.vision.cosmos_ar.positions import absolute_embeddings, rotary_angles

EPS = 1e-5


class CosmosNorm(nn.Module):
    """A root mean square norm, computed in float32 and scaled in the dtype of the weights."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).type_as(x) * self.weight


class CosmosAttention(nn.Module):
    """Attention with norms of queries and keys, to the tokens before or, with `context_dim`, to a text."""

    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, context_dim: int | None = None) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.wq = nn.Linear(dim, heads * head_dim, bias=False)
        self.wk = nn.Linear(context_dim or dim, kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(context_dim or dim, kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(heads * head_dim, dim, bias=False)
        self.q_norm = CosmosNorm(head_dim)
        self.k_norm = CosmosNorm(head_dim)

    def queries(self, x: Tensor) -> Tensor:
        """Queries [R, heads, W, head_dim] of hidden states [R, W, D]."""
        return self.q_norm(self.wq(x).unflatten(-1, (-1, self.head_dim))).transpose(1, 2)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, kv_heads, W, head_dim] of hidden states [R, W, D]."""
        keys = self.k_norm(self.wk(x).unflatten(-1, (-1, self.head_dim)))
        values = self.wv(x).unflatten(-1, (-1, self.head_dim))
        return keys.transpose(1, 2), values.transpose(1, 2)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """The output [R, W, D]; `mask` [R, 1, W, S] is added to the scores."""
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(2))


class CosmosFeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class CosmosBlock(nn.Module):
    """The layer number `layer_idx`; `cross_attention` is None in models without a text."""

    def __init__(
        self, layer_idx: int, dim: int, heads: int, kv_heads: int, head_dim: int, hidden: int, context_dim: int | None
    ) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.attention = CosmosAttention(dim, heads, kv_heads, head_dim)
        self.attention_norm = CosmosNorm(dim)
        self.cross_attention = self.cross_attention_norm = None
        if context_dim is not None:
            self.cross_attention = CosmosAttention(dim, heads, kv_heads, head_dim, context_dim)
            self.cross_attention_norm = CosmosNorm(dim)
        self.feed_forward = CosmosFeedForward(dim, hidden)
        self.ffn_norm = CosmosNorm(dim)


class CosmosTransformer(ModelMixin, ConfigMixin):
    """The transformer.

    Args:
        vocab_size: Codes, V.
        input_ids: Ids that can be read: the codes, and in models with a text the mark of a video's beginning, whose id
            is V.
        dim: Width.
        n_heads: Attention heads.
        n_kv_heads: Heads of keys and values.
        head_dim: Features per head.
        hidden_dim: Width of the feed-forward layers.
        latent_shape: Latent frames, rows and columns of a video, (T, H, W).
        context_dim: Features of the text; None for models that continue a video without one.
        yarn: Whether rotary frequencies are stretched, as in the published 12B and 13B.

    Raises:
        ArgumentError: If the shape of videos is not three numbers of 1 or more.
    """

    @register_to_config
    def __init__(
        self,
        vocab_size: int = 64000,
        input_ids: int = 64000,
        dim: int = 4096,
        n_layers: int = 16,
        n_heads: int = 32,
        n_kv_heads: int = 8,
        head_dim: int = 128,
        hidden_dim: int = 14336,
        latent_shape: Sequence[int] = (5, 40, 64),
        context_dim: int | None = None,
        yarn: bool = False,
    ) -> None:
        super().__init__()
        if len(latent_shape) != 3 or min(latent_shape) < 1:
            raise ArgumentError(f"latent_shape={list(latent_shape)} is not allowed; give latent frames, rows, columns")
        self.tok_embeddings = nn.Embedding(input_ids, dim)
        self.layers = nn.ModuleList(
            CosmosBlock(n, dim, n_heads, n_kv_heads, head_dim, hidden_dim, context_dim) for n in range(n_layers)
        )
        self.norm = CosmosNorm(dim)
        self.output = nn.Linear(dim, vocab_size, bias=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns of a video."""
        frames, rows, columns = self.config["latent_shape"]
        return int(frames), int(rows), int(columns)

    @property
    def marks(self) -> int:
        """Tokens before a video's first code: 1 in models with a text, else 0."""
        return int(self.config["context_dim"] is not None)

    def angles(self) -> Tensor:
        """The rotary angles float32 [marks + T * H * W, head_dim] of a sequence; a mark has angle 0."""
        angles = rotary_angles(self.shape, self.config["head_dim"], self.config["yarn"])
        return F.pad(angles, (0, 0, self.marks, 0))

    def added(self) -> Tensor | None:
        """The embeddings float32 [marks + T * H * W, D] that every layer adds; None in models without a text."""
        if not self.marks:
            return None
        return F.pad(absolute_embeddings(self.shape, self.config["dim"]), (0, 0, 1, 0))

    def contexts(self, context: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of a text's features [B, S, C] in each layer."""
        return [layer.cross_attention.keys_and_values(context.to(self.dtype)) for layer in self._blocks()]

    def _blocks(self) -> list[Any]:
        return list(self.layers)
