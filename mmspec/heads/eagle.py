"""The EAGLE head (Li et al. 2024, arXiv 2401.15077): one decoder layer that foretells the target's next feature.

What it reads of a place is the token there and the feature the target drew it from; what it gives is a guess of the
feature after the token, which the target's own head turns into logits. Parameter names are those of the published
LANTERN drafters (arXiv 2410.03355), for LlamaGen's grid and for Llama's rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from mmspec.heads.rotary import grid_table, rotate, rotate_halves, row_table

KeysValues = tuple[Tensor, Tensor]


class PerHeadNorm(nn.Module):
    """Layer norm of queries or keys [R, W, heads, head_dim], with a scale for each head (Chameleon)."""

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
        """Queries, keys and values of [R, W, D], each [R, heads, W, head_dim], not turned yet."""
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int, eps: float, input_layernorm: bool, qk_norm: bool) -> None:
        super().__init__()
        self.self_attn = Attention(dim, heads, qk_norm)
        self.mlp = MLP(dim, hidden)
        self.input_layernorm = nn.RMSNorm(dim, eps=eps) if input_layernorm else None
        self.post_attention_layernorm = nn.RMSNorm(dim, eps=eps)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn.project(x if self.input_layernorm is None else norm(self.input_layernorm, x))

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What comes after attention; `mixed` [R, heads, W, head_dim] is what it found."""
        x = x + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(norm(self.post_attention_layernorm, x))


def norm(layer: nn.RMSNorm, x: Tensor) -> Tensor:
    """A norm in the type of its weight, which under autocast is another than that of `x`."""
    return layer(x.to(layer.weight.dtype))


class EagleHead(nn.Module, PyTorchModelHubMixin):
    """An EAGLE head.

    An image's token i sits in slot `prefix + i`.

    Args:
        vocab_size: The target's tokens, V.
        hidden_size: Its features, D.
        intermediate_size: Of the layer, as in Llama.
        num_attention_heads: Of the layer, as in Llama.
        rms_norm_eps: Of the layer, as in Llama.
        rope_theta: Of the layer, as in Llama.
        bias: Whether the layer that joins token and feature has one.
        grid_size: Tokens per side of an image, whose rotary embedding is then 2-D; None: tokens in a row.
        prefix: Prompt slots whose features it reads before the one that token 0 was drawn from. They count as token 0.
        max_position_embeddings: Slots in a row, without a grid.
        input_layernorm: Chameleon's additions.
        qk_norm: Chameleon's additions.
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
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.heads = num_attention_heads
        self.prefix = prefix
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.fc = nn.Linear(2 * hidden_size, hidden_size, bias=bias)
        layer = Layer(hidden_size, intermediate_size, num_attention_heads, rms_norm_eps, input_layernorm, qk_norm)
        self.layers = nn.ModuleList([layer])
        self._grid_size, self._slots, self._theta = grid_size, max_position_embeddings, rope_theta
        self._rotate = rotate_halves if grid_size is None else rotate
        self._table: tuple[Tensor, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def layer(self) -> Layer:
        """The only one."""
        layer = self.layers[0]
        assert isinstance(layer, Layer)
        return layer

    def init_weights(self, std: float = 0.02) -> None:
        """Random weights to train from. The guess starts as what `fc` makes of the feature: itself."""
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")) or name == "fc.bias":
                nn.init.zeros_(p)
            elif p.ndim == 2 and "norm" not in name:
                nn.init.normal_(p, std=std)
        with torch.no_grad():
            self.fc.weight[:, self.hidden_size :] += torch.eye(self.hidden_size)

    def turns(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [R, 1, W, head_dim] of int64 [R, W] slots; those past the end count as the last."""
        if self._table is None or self._table[0].device != self.device:
            # It outlives this call, which may be one without gradients, and then serves one with them.
            with torch.inference_mode(False):
                width = self.hidden_size // self.heads
                if self._grid_size is None:
                    table = row_table(self._slots, width, self._theta)
                else:
                    table = grid_table(self._grid_size, self.prefix, width, self._theta, "zero")
                self._table = table[0].to(self.device), table[1].to(self.device)
        cos, sin = self._table
        slots = slots.clamp(max=len(cos) - 1)
        return cos[slots][:, None], sin[slots][:, None]

    def project(self, tokens: Tensor, features: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, KeysValues]:
        """The joined input [R, W, D], and turned queries, keys and values of it, each [R, heads, W, head_dim].

        Args:
            tokens: int64 [R, W].
            features: [R, W, D], those that the tokens were drawn from.
            slots: int64 [R, W], where they sit.
        """
        x = self.fc(torch.cat([self.embed_tokens(tokens), features.to(self.dtype)], dim=-1))
        q, k, v = self.layer.project(x)
        cos, sin = self.turns(slots)
        return x, self._rotate(q, cos, sin).to(v.dtype), (self._rotate(k, cos, sin).to(v.dtype), v)

    def finish(self, x: Tensor, q: Tensor, seen: KeysValues, bias: Tensor | None) -> Tensor:
        """The features foretold after each token, [R, W, D]; `bias` is added to the scores, where something hides."""
        return self.layer.finish(x, F.scaled_dot_product_attention(q, *seen, attn_mask=bias))

    def unroll(self, tokens: Tensor, features: Tensor, depth: int) -> list[Tensor]:
        """What it foretells at each depth of a draft begun at every slot, `depth` tensors [R, S, D].

        A draft of depth d reads the target's features up to d slots back, and its own guesses from there on; so do the
        drafts it is trained for (Zhang et al. 2024, HASS, arXiv 2408.15766).

        Args:
            tokens: int64 [R, S], the tokens of all slots from the first on.
            features: [R, S, D], of the target. The first d - 1 slots have no draft of depth d: what is there counts for
                nothing.
        """
        size = tokens.shape[1]
        slots = torch.arange(size, device=tokens.device).expand(tokens.shape)
        ahead = torch.ones(size, size, dtype=torch.bool, device=tokens.device)
        guesses: list[Tensor] = []
        read: list[KeysValues] = []
        for d in range(depth):
            x, q, both = self.project(tokens, features, slots)
            read.append(both)
            k, v = read[0]
            scores = (q @ k.transpose(-1, -2)).masked_fill(ahead.triu(1 - d), -torch.inf)
            # Of guesses, each slot sees its own and those of the slots right before it.
            nearer = [(q * shift(k, d - i)).sum(-1, keepdim=True) for i, (k, _) in enumerate(read) if i > 0]
            weights = (torch.cat([scores, *nearer], dim=-1) / q.shape[-1] ** 0.5).softmax(-1)
            mixed = weights[..., :size] @ v
            for i, (_, v) in enumerate(read[1:], start=1):
                mixed = mixed + weights[..., size + i - 1 : size + i] * shift(v, d - i)
            guesses.append(self.layer.finish(x, mixed))
            features = shift(guesses[-1], 1)
        return guesses


def shift(x: Tensor, slots: int) -> Tensor:
    """`x` [..., S, D] moved so many slots to the right, zeros moving in."""
    return x if slots == 0 else F.pad(x, (0, 0, slots, 0))[..., :-slots, :]
