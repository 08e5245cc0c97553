"""Parts that several heads share."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError


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
