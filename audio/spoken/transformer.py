"""The transformer of the spoken voice: a small Llama that is told at every token which phone it is in.

A token is a code of the codec and a bit: whether it is the last token of its phone. Counting the bits of what was said
tells which phone comes next, so that the text is followed by construction: no phone is skipped or repeated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.audio.spoken.config import CODES
from mmspec.decoding.kv_cache import KVCache, WindowSlots

ENDS = CODES  # added to a code: the phone ends with it
STOP = 2 * CODES  # ends the sentence
LONGEST = 40  # tokens of a phone
_AGES = 32


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.RMSNorm(dim, eps=1e-5)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.scale = nn.Parameter(torch.ones(2, 1, 1, dim // heads))  # of normalised queries and keys
        self.out = nn.Linear(dim, dim, bias=False)
        self.norm2 = nn.RMSNorm(dim, eps=1e-5)
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(
        self,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        bias: Tensor | None,
        cache: tuple[Tensor, Tensor, WindowSlots] | None,
    ) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [3, B, H, W, D]
        qk, v = qkv[:2], qkv[2]
        qk = F.rms_norm(qk, qk.shape[-1:], eps=1e-5) * self.scale[:, None]
        cos, sin = turn
        a, b = qk.chunk(2, dim=-1)
        qk = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(v.dtype)
        q, k = qk.unbind()
        if cache is not None:
            k, v = cache[2].write(cache[0], k), cache[2].write(cache[1], v)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=bias is None and x.shape[1] > 1)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        gate, value = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * value)


class SpokenTransformer(nn.Module):
    """Tokens and phones to logits.

    Args:
        dim: Width.
        layers: Depth.
        heads: Heads.
        hidden: Width of the feed-forward part.
        sizes: Of the columns of a script's features.
        codes: C. Tokens below C are codes, those below 2 C codes that end their phone; token 2 C ends the sentence.
    """

    def __init__(self, dim: int, layers: int, heads: int, hidden: int, sizes: list[int], codes: int = CODES) -> None:
        super().__init__()
        self.config = {"dim": dim, "layers": layers, "heads": heads, "hidden": hidden, "sizes": list(sizes)}
        self.config["codes"] = codes
        self.heads = heads
        self.codes = codes
        self.vocab_size = 2 * codes + 1
        self.code = nn.Embedding(codes, dim)
        self.ends = nn.Parameter(torch.zeros(dim))
        self.start = nn.Parameter(torch.zeros(dim))
        self.told = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        self.age = nn.Embedding(_AGES, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.head = nn.Linear(dim, self.vocab_size, bias=False)

    def init_weights(self) -> None:
        """Random weights to train from; residual branches start at zero."""
        for name, p in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def turns(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding, float32 [length, head_dim / 2] each."""
        half = self.start.shape[0] // self.heads // 2
        adaptive_window = 1000.0 ** -(torch.arange(half, device=self.start.device) / half)
        angle = torch.arange(length, device=self.start.device)[:, None] * adaptive_window
        return angle.cos(), angle.sin()

    def tell(self, features: Tensor) -> Tensor:
        """What it is told at each phone: features int64 [..., columns] to [..., dim]."""
        return sum(table(features[..., c]) for c, table in enumerate(self.told))

    def enter(self, tokens: Tensor, told: Tensor, age: Tensor) -> Tensor:
        """Inputs [B, W, dim] that follow `tokens` int64 [B, W].

        Args:
            told: [B, W, dim], of the phone that comes next.
            age: int64 [B, W], tokens of that phone so far.
        """
        ended = (tokens >= self.codes).unsqueeze(-1)
        return self.code(tokens % self.codes) + ended * self.ends + told + self.age(age.clamp(max=_AGES - 1))

    def run(
        self,
        h: Tensor,
        turn: tuple[Tensor, Tensor],
        bias: Tensor | None,
        cache: KVCache | None,
        window: WindowSlots | None,
        layers: int | None = None,
    ) -> Tensor:
        """The blocks, or the first `layers` of them, and the head: [B, W, dim] to logits [B, W, vocab_size]."""
        for i, block in enumerate(list(self.blocks)[:layers]):
            h = block(h, turn, bias, None if cache is None or window is None else (*cache.layer(i), window))
        return self.head(self.norm(h))

    def forward(self, tokens: Tensor, features: Tensor, age: Tensor) -> Tensor:
        """Teacher-forced logits [B, T, vocab_size]; `[:, t]` is the distribution of `tokens[:, t]` given what precedes it.

        Args:
            tokens: int64 [B, T].
            features: int64 [B, T, columns], of the phone of each token.
            age: int64 [B, T], tokens of that phone before this one.
        """
        told = self.tell(features)
        first = (self.start + told[:, 0] + self.age(age[:, 0]))[:, None]
        h = torch.cat([first, self.enter(tokens[:, :-1], told[:, 1:], age[:, 1:])], dim=1)
        return self.run(h, self.turns(tokens.shape[1]), None, None, None)
