"""The attention that several heads share, and its form in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mmspec.heads.layers import norm, shift

KeysValues = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """The projections of an attention, with the parameter names of Llama and Qwen3.

    Args:
        inputs: Width of what queries, keys and values are projected from.
        dim: Width D of the output.
        heads: Number of attention heads.
        kv_heads: Number of heads of keys and values.
        head_dim: Width of a head.
        eps: Epsilon of the norms.
        bias: Whether queries, keys and values have biases.
        output_bias: Whether the output has one.
        qk_norm: Whether queries and keys are normalized, as in Qwen3.
    """

    def __init__(
        self,
        inputs: int,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        bias: bool,
        output_bias: bool,
        qk_norm: bool,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(inputs, heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(inputs, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(inputs, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, dim, bias=output_bias)
        self.q_norm = nn.RMSNorm(head_dim, eps=eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(head_dim, eps=eps) if qk_norm else None

    def queries(self, x: Tensor) -> Tensor:
        """Queries [R, heads, W, head_dim] of x [R, W, inputs], before the rotary embedding."""
        q = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        return (q if self.q_norm is None else norm(self.q_norm, q)).transpose(1, 2)

    def keys_values(self, x: Tensor) -> KeysValues:
        """Keys, before the rotary embedding, and values of x [R, W, inputs], each [R, kv_heads, W, head_dim]."""
        k, v = (layer(x).unflatten(-1, (-1, self.head_dim)) for layer in (self.k_proj, self.v_proj))
        return (k if self.k_norm is None else norm(self.k_norm, k)).transpose(1, 2), v.transpose(1, 2)


def repeat_kv(x: Tensor, heads: int) -> Tensor:
    """Keys or values [R, kv_heads, W, head_dim] repeated for all heads of the queries."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def unroll(
    project: Callable[[Tensor], tuple[Tensor, Tensor, KeysValues]],
    finish: Callable[[Tensor, Tensor], Tensor],
    features: Tensor,
    depth: int,
    window: int | None = None,
) -> list[Tensor]:
    """Outputs at each depth of drafts that begin at every slot, for training.

    At depth d (from 0) a slot reads the target's features up to d slots back and the head's own outputs after them, as
    at decoding time (HASS, Zhang et al. 2024, arXiv 2408.15766; the training-time test of EAGLE-3).

    Args:
        project: Maps features [R, S, D] to the residual, the queries, and keys with values; see `EagleHead.project`.
        finish: Maps the residual and the attention output [R, heads, S, head_dim] to the output, [R, S, D].
        features: The target's features, [R, S, D].
        depth: Number of depths.
        window: Slots that a draft reads the target's features of; None for all earlier ones.

    Returns:
        `depth` tensors [R, S, D]. At depth d the first d slots have no draft; their values are meaningless.
    """
    outputs: list[Tensor] = []
    caches: list[KeysValues] = []  # of each depth
    for _ in range(depth):
        x, q, (k, v) = project(features)
        caches.append((repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1])))
        outputs.append(finish(x, attend_unrolled(q, caches, window)))
        features = shift(outputs[-1], 1)
    return outputs


def attend_unrolled(q: Tensor, caches: Sequence[KeysValues], window: int | None = None) -> Tensor:
    """Attention of the drafts that begin at every slot, at the last depth, for training: [R, heads, S, head_dim].

    A slot attends to the first depth's keys and values of earlier slots, and to one prediction of each later depth: its
    own draft, in this slot and those right before it.

    Args:
        q: Queries of the last depth, [R, heads, S, head_dim].
        caches: Keys and values of each depth, each [R, heads, S, head_dim].
        window: Slots of the first depth that are attended to, the latest ones; None for all.
    """
    depth, size = len(caches) - 1, q.shape[2]
    ones = torch.ones(size, size, dtype=torch.bool, device=q.device)
    k, v = caches[0]
    hidden = ones.triu(1 - depth) if window is None else ones.triu(1 - depth) | ones.tril(-depth - window)
    scores = (q @ k.transpose(-1, -2)).masked_fill(hidden, -torch.inf)
    drafted = [(q * shift(k, depth - i)).sum(-1, keepdim=True) for i, (k, _) in enumerate(caches) if i > 0]
    weights = (torch.cat([scores, *drafted], dim=-1) / q.shape[-1] ** 0.5).softmax(-1)
    attended = weights[..., :size] @ v
    for i, (_, v) in enumerate(caches[1:], start=1):
        attended = attended + weights[..., size + i - 1 : size + i] * shift(v, depth - i)
    return attended
