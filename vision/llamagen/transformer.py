"""The LlamaGen transformer (Sun et al. 2024, arXiv 2406.06525): a Llama with 2-D RoPE after a condition prefix.

A sequence is `T` condition slots followed by `N = grid_size ** 2` image tokens in raster order. Token `i` sits in slot
`T + i` and is predicted in slot `T - 1 + i`. Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.decoding.kv_cache import KVCache, Store, WindowSlots
from mmspec.decoding.target import LayerRun
from mmspec.errors import ArgumentError
from mmspec.heads.rotary import grid_table, rotate
from mmspec.vision.component import Component, stores_arguments


@dataclass
class Span:
    """The slots that one forward call reads.

    Attributes:
        cos: Rotary rows, [W, head_dim], or [R, 1, W, head_dim] where rows differ.
        sin: As `cos`.
        bias: Added to attention scores, broadcast over [R, heads, W, end]; None is causal.
        window: Where keys and values are written; None without a cache.
    """

    cos: Tensor
    sin: Tensor
    bias: Tensor | None
    window: WindowSlots | None = None


class Attention(nn.Module):
    def __init__(self, dim: int, n_head: int, norm_eps: float, qk_norm: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self.q_norm = nn.RMSNorm(dim // n_head, eps=norm_eps) if qk_norm else None
        self.k_norm = nn.RMSNorm(dim // n_head, eps=norm_eps) if qk_norm else None

    def forward(self, x: Tensor, span: Span, cache: tuple[Store, Store] | None) -> Tensor:
        qkv = self.wqkv(x)
        batch, width, dim = qkv.shape
        qkv = qkv.reshape(batch, width, 3, self.n_head, dim // (3 * self.n_head)).permute(2, 0, 3, 1, 4)
        qk, v = qkv[:2], qkv[2]  # [2, B, H, W, D] and [B, H, W, D]
        if self.q_norm is not None and self.k_norm is not None:
            # Queries and keys at once: with one token per call, the number of operations determines the time.
            weight = torch.stack([self.q_norm.weight, self.k_norm.weight])[:, None, None, None]
            qk = F.rms_norm(qk, qk.shape[-1:], eps=self.q_norm.eps) * weight
        q, k = rotate(qk, span.cos, span.sin).to(v.dtype).unbind()  # rotated in float32
        if cache is not None and span.window is not None:
            k, v = span.window.write(cache[0], k), span.window.write(cache[1], v)
        causal = span.bias is None and q.shape[2] > 1
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=span.bias, is_causal=causal)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim: int, n_head: int, hidden: int, norm_eps: float, qk_norm: bool) -> None:
        super().__init__()
        self.attention = Attention(dim, n_head, norm_eps, qk_norm)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm = nn.RMSNorm(dim, eps=norm_eps)
        self.ffn_norm = nn.RMSNorm(dim, eps=norm_eps)

    def forward(self, x: Tensor, span: Span, cache: tuple[Store, Store] | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), span, cache)
        return x + self.feed_forward(self.ffn_norm(x))


class LabelEmbedder(nn.Module):
    """Maps class ids int64 [B] to one condition slot [B, 1, dim]; id `num_classes` is the unconditional one."""

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(num_classes + 1, dim)

    def forward(self, condition: Tensor) -> Tensor:
        return self.embedding_table(condition)[:, None]


class CaptionMLP(nn.Module):
    def __init__(self, caption_dim: int, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(caption_dim, dim, bias=False)
        self.fc2 = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class CaptionEmbedder(nn.Module):
    """Maps caption features [B, T, caption_dim] to condition slots [B, T, dim]."""

    uncond_embedding: Tensor

    def __init__(self, caption_dim: int, dim: int, slots: int) -> None:
        super().__init__()
        self.cap_proj = CaptionMLP(caption_dim, dim)
        self.register_buffer("uncond_embedding", torch.randn(slots, caption_dim) / caption_dim**0.5)

    def forward(self, condition: Tensor) -> Tensor:
        return self.cap_proj(condition.to(self.cap_proj.fc1.weight.dtype))


MAX_GRID, MAX_SLOTS = 1024, 65536  # tokens per side, condition slots: their rotary table is not part of a checkpoint


class LlamaGenTransformer(Component):
    """The LlamaGen transformer; `mmspec.vision.llamagen.gpt.LlamaGenGPT` is the same as a model of diffusers.

    Args:
        vocab_size: Image tokens, ids 0..vocab_size-1.
        dim: Width.
        n_layer: Depth.
        ffn_dim: The width of the feed-forward part, by default `2/3 * 4 * dim` rounded up to `multiple_of`.
        multiple_of: The default of `ffn_dim` is a multiple of this.
        model_type: `"c2i"` (condition: class ids [B]) or `"t2i"` (condition: caption features [B, T, caption_dim]).
        num_classes: Classes of a c2i model.
        cls_token_num: Condition slots T.
        caption_dim: Width of the caption features of a t2i model.
        grid_size: Tokens per side of the image.
        rope_base: 10000 in the published models.
        norm_eps: 1e-5 in the published models.
        qk_norm: Whether queries and keys are normalised; off in the published models.
        condition_rope: The rotary embedding of condition slots: "zero", as in the published models, or "identity".
        position_embedding: Adds a learned embedding of the row and column that a slot predicts; off in the published
            models.

    Raises:
        ArgumentError: If an argument has a value that is not allowed.
    """

    saved_as = "LlamaGenGPT"

    @stores_arguments
    def __init__(
        self,
        vocab_size: int = 16384,
        dim: int = 768,
        n_layer: int = 12,
        n_head: int = 12,
        ffn_dim: int | None = None,
        multiple_of: int = 256,
        model_type: str = "c2i",
        num_classes: int = 1000,
        cls_token_num: int = 1,
        caption_dim: int = 2048,
        grid_size: int = 16,
        rope_base: float = 10000.0,
        norm_eps: float = 1e-5,
        qk_norm: bool = False,
        condition_rope: str = "zero",
        position_embedding: bool = False,
    ) -> None:
        super().__init__()
        if model_type not in ("c2i", "t2i"):
            raise ArgumentError(f"model_type={model_type!r} is not allowed; use 'c2i' or 't2i'")
        if condition_rope not in ("zero", "identity"):
            raise ArgumentError(f"condition_rope={condition_rope!r} is not allowed; use 'zero' or 'identity'")
        for name, value, most in (
            ("n_layer", n_layer, None),
            ("n_head", n_head, dim),
            ("grid_size", grid_size, MAX_GRID),
            ("cls_token_num", cls_token_num, MAX_SLOTS),
        ):
            if not isinstance(value, int) or value < 1 or (most is not None and value > most):
                limit = "" if most is None else f", at most {most}"
                raise ArgumentError(f"{name}={value!r} is not allowed; it must be an integer, 1 or more{limit}")
        if dim % (4 * n_head):
            raise ArgumentError(f"dim={dim} must be divisible by 4 * n_head={4 * n_head}: two rotary pairs per head")
        hidden = ffn_dim or -(-int(8 * dim / 3) // multiple_of) * multiple_of
        self.cls_embedding: LabelEmbedder | CaptionEmbedder
        if model_type == "c2i":
            self.cls_embedding = LabelEmbedder(num_classes, dim)
        else:
            self.cls_embedding = CaptionEmbedder(caption_dim, dim, cls_token_num)
        self.tok_embeddings = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(Block(dim, n_head, hidden, norm_eps, qk_norm) for _ in range(n_layer))
        self.norm = nn.RMSNorm(dim, eps=norm_eps)
        self.output = nn.Linear(dim, vocab_size, bias=False)
        self.row_embedding = nn.Embedding(grid_size, dim) if position_embedding else None
        self.column_embedding = nn.Embedding(grid_size, dim) if position_embedding else None
        self._rope: tuple[Tensor, Tensor] | None = None

    def init_weights(self, std: float = 0.02) -> None:
        """Random initial weights for training; residual branches start at zero."""
        for name, p in self.named_parameters():
            if name.endswith(("wo.weight", "w2.weight")):
                nn.init.zeros_(p)
            elif p.ndim > 1:
                nn.init.normal_(p, std=std)

    def rope(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The rotary table, float32 [T + grid_size ** 2, head_dim] cosines and sines; computed once per device."""
        if self._rope is None or self._rope[0].device != device:
            c = self.config
            # The table may be made in inference mode and used later where gradients are needed.
            with torch.inference_mode(False):
                table = grid_table(c.grid_size, c.cls_token_num, c.dim // c.n_head, c.rope_base, c.condition_rope)
                self._rope = table[0].to(device), table[1].to(device)
        return self._rope

    def unconditional(self, batch_size: int) -> Tensor:
        """The unconditional condition: class ids int64 [B], or features [B, T, caption_dim]."""
        if isinstance(self.cls_embedding, CaptionEmbedder):
            return self.cls_embedding.uncond_embedding.expand(batch_size, -1, -1)
        return torch.full((batch_size,), self.config.num_classes, device=self.device)

    @property
    def cell(self) -> tuple[int, ...]:
        """The shape of what a step yields; see `mmspec.decoding.layout.Layout`."""
        return ()

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens of an image."""
        return self.config.grid_size, self.config.grid_size

    def steps_of(self, tokens: Tensor) -> Tensor:
        """What each step yields, int64 [B, steps, *cell], of the tokens int64 [B, N] of whole images."""
        return tokens

    def in_raster_order(self, steps: Tensor | Sequence[Tensor]) -> Tensor | Sequence[Tensor]:
        """The tokens of images in raster order, -1 where they are missing, of what steps yielded.

        Args:
            steps: int64 [B, n, *cell], or one tensor int64 [n_row, *cell] per row.
        """
        return steps

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [B, W, dim] of what steps yielded, int64 [B, W, *cell]."""
        return self.tok_embeddings(tokens)

    def add_position(self, h: Tensor, predicted: Tensor) -> Tensor:
        """Adds the embedding of the position that each slot predicts, int64 [..., W] in raster order."""
        if self.row_embedding is None or self.column_embedding is None:
            return h
        g = self.config.grid_size
        return h + self.row_embedding(predicted // g) + self.column_embedding(predicted % g)

    def features(
        self,
        h: Tensor,
        span: Span,
        cache: KVCache | None,
        run: LayerRun | None = None,
    ) -> Tensor:
        """Runs the blocks and the final norm.

        Args:
            h: Embedded slots [B, W, dim].
            span: Positions, mask and cache slots.
            cache: The KV cache; None reads the window alone.
            run: Which blocks run, and which states are kept; None runs all and keeps none.

        Returns:
            The input of the head, [B, W, dim].
        """
        run = run or LayerRun(None)
        for i, block in enumerate(self.layers):
            run.keep(i, h)
            if not run.runs(i):
                h = run.skip(i, h)
                continue
            h = block(h, span, None if cache is None else cache.layer(i))
        run.keep(len(self.layers), h)
        return self.norm(h)

    def forward(self, tokens: Tensor, condition: Tensor, condition_mask: Tensor | None = None) -> Tensor:
        """Teacher-forced logits of a whole sequence.

        Args:
            tokens: int64 [B, N', *cell], N' <= grid_size**2.
            condition: Class ids int64 [B], or caption features [B, T, caption_dim].
            condition_mask: [B, T], 0 on padded caption slots.

        Returns:
            Logits [B, N', *cell, vocab_size]; `[:, i]` is the distribution of `tokens[:, i]` given what precedes it.
        """
        slots, n = self.config.cls_token_num, tokens.shape[1]
        prefix = self.cls_embedding(condition)
        h = torch.cat([prefix, self.embed(tokens[:, :-1])], dim=1)
        predicted = torch.arange(n, device=h.device)
        h = torch.cat([h[:, : slots - 1], self.add_position(h[:, slots - 1 :], predicted)], dim=1)
        cos, sin = self.rope(h.device)
        length = h.shape[1]
        bias = None
        if condition_mask is not None:
            causal = torch.full((length, length), -torch.inf, device=h.device, dtype=h.dtype).triu(1)
            bias = causal + padding_bias(condition_mask, length, h.dtype)
        span = Span(cos[:length], sin[:length], bias)
        return self.output(self.features(h, span, None)[:, slots - 1 :])


def padding_bias(condition_mask: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [B, 1, length, length] that hides padded condition slots from all slots but themselves.

    Args:
        condition_mask: [B, T], 0 on padded condition slots.
        length: Slots.
        dtype: Of the mask.
    """
    batch, slots = condition_mask.shape
    bias = torch.zeros(batch, 1, length, length, dtype=dtype, device=condition_mask.device)
    bias[..., :slots].masked_fill_(condition_mask[:, None, None].logical_not(), -torch.inf)
    bias.diagonal(dim1=-2, dim2=-1).zero_()
    return bias
