"""The outer head: what the layers between the outer ones do to a change on the left, learned.

Refresh by the outer layers (`mmspec.methods.outer.drafter`) lets the first layer of the target and its last one read a
window again, with corrected tokens; what the layers between them added to a slot is kept. This head corrects that. It
reads the change of the first layer's output, and the old states on both sides of the skipped layers. All of its
layers are linear in the change, with gates and attention weights that depend on the states: slots up to the first
change keep their states to the last bit, so that the target's KV cache stays whole. The head has no cache.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.errors import ArgumentError
from mmspec.heads.head import Head, ToySizes, randomized
from mmspec.heads.layers import check_sizes

REACH = 128  # distances that attention tells apart; greater ones count as this


class ChangeLayer(nn.Module):
    """Attention over the changes on the left, then a gated MLP, both linear in the change.

    Args:
        dim: Width D of the states.
        hidden: Width of the MLP.
        heads: Number of attention heads.
    """

    def __init__(self, dim: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.q_proj = nn.Linear(2 * dim, dim, bias=False)
        self.k_proj = nn.Linear(2 * dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.distance = nn.Parameter(torch.zeros(heads, REACH))
        self.gate_proj = nn.Linear(2 * dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, change: Tensor, context: Tensor) -> Tensor:
        """The change [R, W, D] after the layer, of the change before it and what the states say, [R, W, D] both."""
        z = torch.cat([context, self.norm(change)], dim=-1)
        parts = self.q_proj(z), self.k_proj(z), self.v_proj(change)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in parts)
        slots = torch.arange(change.shape[1], device=change.device)
        far = slots[:, None] - slots
        bias = self.distance[:, far.clamp(0, REACH - 1)].masked_fill(far < 0, -torch.inf)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        change = change + self.o_proj(attended.transpose(1, 2).flatten(2))
        z = torch.cat([context, self.norm(change)], dim=-1)
        return change + self.down_proj(F.silu(self.gate_proj(z)) * self.up_proj(change))


class OuterHead(Head):
    """An outer head.

    Args:
        vocab_size: Size V of the target's vocabulary; only to tell models apart.
        hidden_size: Width D of the target's states.
        intermediate_size: Width of the MLPs.
        num_attention_heads: Number of attention heads.
        change_layers: Number of layers.

    Raises:
        ArgumentError: If a size is not allowed.
    """

    kind = "outer"

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_attention_heads: int,
        change_layers: int = 2,
    ) -> None:
        super().__init__()
        check_sizes(
            [("num_attention_heads", num_attention_heads, 1, hidden_size), ("change_layers", change_layers, 1, 64)]
        )
        if hidden_size % num_attention_heads:
            raise ArgumentError(f"num_attention_heads={num_attention_heads} must divide hidden_size={hidden_size}")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.norms = nn.ModuleList(nn.RMSNorm(hidden_size, eps=1e-5) for _ in range(3))
        self.context = nn.Linear(3 * hidden_size, hidden_size, bias=False)
        self.layers = nn.ModuleList(
            ChangeLayer(hidden_size, intermediate_size, num_attention_heads) for _ in range(change_layers)
        )

    @property
    def device(self) -> torch.device:
        return self.context.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.context.weight.dtype

    def init_weights(self) -> None:
        """Initializes weights for training; the head starts by leaving the change as it is."""
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
            elif name.endswith("weight") and p.ndim == 2:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)

    def forward(self, new: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """The states after the skipped layers, [R, W, D].

        Args:
            new: The states before the skipped layers now, [R, W, D].
            before: The same in the target's last full call.
            after: The states after the skipped layers in that call.
        """
        change = (new - before).to(self.dtype)
        states = [norm(x.to(self.dtype)) for norm, x in zip(self.norms, (new, before, after), strict=True)]
        context = self.context(torch.cat(states, dim=-1))
        for layer in self.layers:
            change = layer(change, context)
        return after + change.to(after)

    @classmethod
    def toy(cls, sizes: ToySizes) -> OuterHead:
        return randomized(cls(sizes.vocab_size, sizes.hidden_size, 24, 2), 0.25)
