"""Parts that several heads share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError

KeysValues = tuple[Tensor, Tensor]


def check_sizes(sizes: Sequence[tuple[str, object, int, int]]) -> None:
    """Checks that each size (name, value, least, most) is an integer in its range.

    Raises:
        ArgumentError: If one is not.
    """
    for name, value, least, most in sizes:
        if not (isinstance(value, int) and least <= value <= most):
            raise ArgumentError(f"{name}={value!r} is not allowed; it must be an integer, {least} to {most}")


def attention_sizes(
    hidden_size: int, num_attention_heads: int, num_key_value_heads: int | None, head_dim: int | None
) -> tuple[int, int]:
    """The number of heads of keys and values and the width of a head, with transformers' defaults where they are None.

    Raises:
        ArgumentError: If a number is not allowed, or one does not divide another.
    """
    kv_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
    check_sizes([("num_attention_heads", num_attention_heads, 1, 4096), ("num_key_value_heads", kv_heads, 1, 4096)])
    if num_attention_heads % kv_heads:
        raise ArgumentError(f"num_key_value_heads={kv_heads} must divide num_attention_heads={num_attention_heads}")
    if head_dim is None and hidden_size % num_attention_heads:
        raise ArgumentError(f"num_attention_heads={num_attention_heads} must divide hidden_size={hidden_size}")
    return kv_heads, hidden_size // num_attention_heads if head_dim is None else head_dim


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def norm(layer: nn.RMSNorm, x: Tensor) -> Tensor:
    """Applies a norm in the dtype of its weight, which under autocast differs from that of `x`."""
    return layer(x.to(layer.weight.dtype))


def shift(x: Tensor, slots: int) -> Tensor:
    """Shifts `x` [..., S, D] to the right by `slots`, filling with zeros."""
    return x if slots == 0 else F.pad(x, (0, 0, slots, 0))[..., :-slots, :]


def attend_unrolled(q: Tensor, caches: Sequence[KeysValues]) -> Tensor:
    """Attention of the drafts that begin at every slot, at the last depth, for training: [R, heads, S, head_dim].

    A slot attends to the first depth's keys and values of earlier slots, and to one prediction of each later depth: its
    own draft, in this slot and those right before it.

    Args:
        q: Queries of the last depth, [R, heads, S, head_dim].
        caches: Keys and values of each depth, each [R, heads, S, head_dim].
    """
    depth, size = len(caches) - 1, q.shape[2]
    ones = torch.ones(size, size, dtype=torch.bool, device=q.device)
    k, v = caches[0]
    scores = (q @ k.transpose(-1, -2)).masked_fill(ones.triu(1 - depth), -torch.inf)
    drafted = [(q * shift(k, depth - i)).sum(-1, keepdim=True) for i, (k, _) in enumerate(caches) if i > 0]
    weights = (torch.cat([scores, *drafted], dim=-1) / q.shape[-1] ** 0.5).softmax(-1)
    attended = weights[..., :size] @ v
    for i, (_, v) in enumerate(caches[1:], start=1):
        attended = attended + weights[..., size + i - 1 : size + i] * shift(v, depth - i)
    return attended
