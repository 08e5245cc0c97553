"""The EAGLE head (Li et al. 2024, arXiv 2401.15077): one decoder layer that predicts the target's next feature.

A feature is the target's last hidden state, from which its LM head computes logits. The input of a slot is its token
and the feature that the token was sampled from; the output predicts the feature after the token. Parameter names are
those of the published LANTERN drafters (arXiv 2410.03355), for LlamaGen (2-D rotary embedding) and Llama (1-D).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.heads.attention import KeysValues, unroll
from mmspec.heads.head import Head, ToySizes, randomized
from mmspec.heads.layers import MLP, check_sizes, norm
from mmspec.heads.rotary import Rotary, rotary_sizes


class PerHeadNorm(nn.Module):
    """Layer norm of queries or keys [R, W, heads, head_dim] with one scale per head, as in Chameleon."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, qk_norm: bool) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.q_norm = PerHeadNorm(heads, dim // heads) if qk_norm else None
        self.k_norm = PerHeadNorm(heads, dim // heads) if qk_norm else None

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of [R, W, D], each [R, heads, W, head_dim], before the rotary embedding."""
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


class Layer(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int, eps: float, input_layernorm: bool, qk_norm: bool) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, qk_norm)
        self.mlp = MLP(dim, hidden)
        self.input_layernorm = nn.RMSNorm(dim, eps=eps) if input_layernorm else None
        self.post_attention_layernorm = nn.RMSNorm(dim, eps=eps)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn.project(x if self.input_layernorm is None else norm(self.input_layernorm, x))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer after attention; `attended` [R, heads, W, head_dim] is the attention output."""
        x = x + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(norm(self.post_attention_layernorm, x))


class EagleHead(Head):
    """An EAGLE head.

    Token i of the sequence has slot `prefix + i`.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features and of the layer.
        intermediate_size: Width of the MLP.
        num_attention_heads: Number of attention heads.
        rms_norm_eps: Epsilon of the RMS norms.
        rope_theta: Base of the rotary embedding.
        bias: Whether `fc`, which merges token embedding and feature, has a bias.
        grid_size: Tokens per image side, for a 2-D rotary embedding; None for a 1-D one.
        prefix: Number of prompt slots that the head reads before the one that token 0 was sampled from. Their token is
            read as token 0.
        max_position_embeddings: Number of slots of a 1-D rotary embedding; unused with `grid_size`.
        input_layernorm: Whether the layer normalizes its input, as in Chameleon.
        qk_norm: Whether queries and keys are normalized, as in Chameleon.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "eagle"

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        rms_norm_eps: float = 1e-6,
        rope_theta: float = 10000.0,
        bias: bool = True,
        grid_size: int | None = None,
        prefix: int = 0,
        max_position_embeddings: int = 2048,
        input_layernorm: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(
            [
                ("num_attention_heads", num_attention_heads, 1, hidden_size),
                *rotary_sizes(grid_size, prefix, max_position_embeddings),
            ]
        )
        if hidden_size % num_attention_heads:
            raise ArgumentError(f"num_attention_heads={num_attention_heads} must divide hidden_size={hidden_size}")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.prefix = prefix
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.fc = nn.Linear(2 * hidden_size, hidden_size, bias=bias)
        layer = Layer(hidden_size, intermediate_size, num_attention_heads, rms_norm_eps, input_layernorm, qk_norm)
        self.layers = nn.ModuleList([layer])
        self.rotary = Rotary(self.head_dim, rope_theta, grid_size, prefix, max_position_embeddings, before="zero")

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def layer(self) -> Layer:
        """The decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        return layer

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training; the head starts by predicting the feature that it reads."""
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")) or name == "fc.bias":
                nn.init.zeros_(p)
            elif p.ndim == 2 and "norm" not in name:
                nn.init.normal_(p, std=std)
        with torch.no_grad():
            self.fc.weight[:, self.hidden_size :] += torch.eye(self.hidden_size)

    def project(self, tokens: Tensor, features: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, KeysValues]:
        """The input of the layer [R, W, D], and its rotated queries, keys and values, each [R, heads, W, head_dim].

        Args:
            tokens: int64 [R, W].
            features: Features that the tokens were sampled from, [R, W, D].
            slots: Slots of the tokens, int64 [R, W].

        Returns:
            The input, the queries, and keys with values.
        """
        x = self.fc(torch.cat([self.embed_tokens(tokens), features.to(self.dtype)], dim=-1))
        q, k, v = self.layer.project(x)
        angles = self.rotary.at(slots)
        return x, self.rotary.rotate(q, angles).to(v.dtype), (self.rotary.rotate(k, angles).to(v.dtype), v)

    def finish(self, x: Tensor, q: Tensor, cache: KeysValues, bias: Tensor | None) -> Tensor:
        """The predicted feature after each token, [R, W, D].

        Args:
            x: From `project`.
            q: From `project`.
            cache: Keys and values of all slots that are attended to.
            bias: Attention bias, 0 or -inf; None to attend to all of `cache`.
        """
        return self.layer.finish(x, F.scaled_dot_product_attention(q, *cache, attn_mask=bias))

    def unroll(self, tokens: Tensor, features: Tensor, depth: int) -> list[Tensor]:
        """Predicted features at each depth of drafts that begin at every slot, for training.

        Args:
            tokens: Tokens of all slots from the first on, int64 [R, S].
            features: The target's features, [R, S, D].
            depth: Number of depths.

        Returns:
            `depth` tensors [R, S, D]. At depth d the first d slots have no draft; their values are meaningless.
        """
        slots = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        return unroll(lambda features: self.project(tokens, features, slots), self.layer.finish, features, depth)

    @classmethod
    def toy(cls, sizes: ToySizes) -> EagleHead:
        return randomized(
            cls(
                sizes.vocab_size, sizes.hidden_size, 24, 2, grid_size=sizes.width, prefix=1, max_position_embeddings=64
            ),
            0.35,
        )
