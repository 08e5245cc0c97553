"""The adapter of Kangaroo (Liu et al. 2024, arXiv 2404.18911): one attention layer on the features of an early exit.

The exit alone drafts badly, unless the model was trained for it. The adapter attends to the exit's features of all
tokens so far and predicts the target's own last feature, from which the target's LM head computes logits. In the paper
it is an attention without an MLP, on hidden states before the final norm; here it is a whole decoder layer, after it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.heads.attention import KeysValues
from mmspec.heads.eagle import Layer
from mmspec.heads.head import Head, ToySizes, randomized
from mmspec.heads.layers import check_sizes
from mmspec.heads.rotary import Rotary, rotary_sizes


class ExitAdapter(Head):
    """An adapter on the features of an early exit. Token i has slot i; the prompt is not read.

    Args:
        vocab_size: Size V of the target's vocabulary.
        hidden_size: Width D of the target's features.
        intermediate_size: Width of the MLP.
        num_attention_heads: Number of attention heads.
        exit_layer: Number of the target's first layers that run before the adapter.
        rms_norm_eps: Epsilon of the RMS norms.
        rope_theta: Base of the rotary embedding.
        grid_size: Tokens per image side, for a 2-D rotary embedding; None for a 1-D one.
        max_position_embeddings: Number of slots of a 1-D rotary embedding; unused with `grid_size`.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "kangaroo"

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        exit_layer: int,
        rms_norm_eps: float = 1e-6,
        rope_theta: float = 10000.0,
        grid_size: int | None = None,
        max_position_embeddings: int = 2048,
    ) -> None:
        super().__init__()
        check_sizes(
            [
                ("num_attention_heads", num_attention_heads, 1, hidden_size),
                ("exit_layer", exit_layer, 1, 1000),
                *rotary_sizes(grid_size, 0, max_position_embeddings),
            ]
        )
        if hidden_size % num_attention_heads:
            raise ArgumentError(f"num_attention_heads={num_attention_heads} must divide hidden_size={hidden_size}")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.exit_layer = exit_layer
        self.heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.layer = Layer(
            hidden_size, intermediate_size, num_attention_heads, rms_norm_eps, input_layernorm=True, qk_norm=False
        )
        self.rotary = Rotary(self.head_dim, rope_theta, grid_size, 0, max_position_embeddings, before="zero")

    @property
    def device(self) -> torch.device:
        return self.layer.post_attention_layernorm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.layer.post_attention_layernorm.weight.dtype

    def init_weights(self, std: float = 0.02) -> None:
        """Initializes weights for training; the adapter starts by passing the exit's features on."""
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=std)

    def project(self, features: Tensor, slots: Tensor) -> tuple[Tensor, KeysValues]:
        """Rotated queries, keys and values of features [R, W, D] at slots int64 [R, W], each [R, heads, W, head_dim].

        Returns:
            The queries, and keys with values.
        """
        q, k, v = self.layer.project(features.to(self.dtype))
        angles = self.rotary.at(slots)
        return self.rotary.rotate(q, angles).to(v.dtype), (self.rotary.rotate(k, angles).to(v.dtype), v)

    def finish(self, features: Tensor, q: Tensor, cache: KeysValues, bias: Tensor | None) -> Tensor:
        """The target's features [R, W, D] that are predicted after each token.

        Args:
            features: The exit's features, [R, W, D].
            q: From `project`.
            cache: Keys and values of all slots that are attended to.
            bias: Attention bias, 0 or -inf; None to attend to all of `cache`.
        """
        attended = F.scaled_dot_product_attention(q, *cache, attn_mask=bias)
        return self.layer.finish(features.to(self.dtype), attended)

    def forward(self, features: Tensor) -> Tensor:
        """The predictions [R, N, D] after all tokens, given the exit's features [R, N, D], for training."""
        slots = torch.arange(features.shape[1], device=features.device).expand(features.shape[:2])
        q, (k, v) = self.project(features, slots)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.layer.finish(features.to(self.dtype), attended)

    @classmethod
    def toy(cls, sizes: ToySizes) -> ExitAdapter:
        return randomized(
            cls(sizes.vocab_size, sizes.hidden_size, 24, 2, 2, grid_size=sizes.width, max_position_embeddings=64), 0.5
        )
