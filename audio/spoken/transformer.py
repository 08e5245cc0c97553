"""The transformer of the voice: a small Llama that is conditioned at every token on the current phone.

A token is a code of the codec and a bit, which marks the last token of a phone. Counting the bits of the previous
tokens gives the current phone, so the text is followed by construction: no phone is skipped or repeated.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.audio.spoken.config import CODES
from mmspec.decoding.kv_cache import KVCache, Store, WindowSlots

PHONE_END = CODES  # added to the code of the last token of a phone
STOP = 2 * CODES  # the token that ends the sentence
MAX_PHONE_TOKENS = 40
_AGES = 32  # embeddings of ages; larger ages share the last one


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.RMSNorm(dim, eps=1e-5)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.scale = nn.Parameter(torch.ones(2, 1, 1, dim // heads))  # of normalized queries and keys
        self.out = nn.Linear(dim, dim, bias=False)
        self.norm2 = nn.RMSNorm(dim, eps=1e-5)
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        bias: Tensor | None,
        cache: tuple[Store, Store, WindowSlots] | None,
    ) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [3, B, H, W, D]
        qk, v = qkv[:2], qkv[2]
        qk = F.rms_norm(qk, qk.shape[-1:], eps=1e-5) * self.scale[:, None]
        cos, sin = rotary
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
    """Logits from tokens and the features of their phones.

    Args:
        dim: Width.
        layers: Number of blocks.
        heads: Number of attention heads.
        hidden: Width of the MLP.
        sizes: Number of values of each column of a script's features.
        codes: Number of codes C. Tokens below C are codes; those from C to 2 * C - 1 are codes that end their phone;
            token 2 * C ends the sentence.
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
        self.told = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)  # of the columns of a script's features
        self.age = nn.Embedding(_AGES, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.head = nn.Linear(dim, self.vocab_size, bias=False)

    def init_weights(self) -> None:
        """Initializes weights for training; residual branches start at zero."""
        for name, p in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                nn.init.zeros_(p)
            elif p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding, float32 [length, head_dim / 2] each."""
        half = self.start.shape[0] // self.heads // 2
        frequencies = 1000.0 ** -(torch.arange(half, device=self.start.device) / half)
        angle = torch.arange(length, device=self.start.device)[:, None] * frequencies
        return angle.cos(), angle.sin()

    def embed_script(self, features: Tensor) -> Tensor:
        """Embeddings [..., dim] of the features of phones, int64 [..., columns]."""
        return sum(table(features[..., c]) for c, table in enumerate(self.told))

    def embed(self, tokens: Tensor, script: Tensor, age: Tensor) -> Tensor:
        """Inputs [B, W, dim] that predict the positions after `tokens`.

        Args:
            tokens: int64 [B, W].
            script: Embedded phone of each predicted position, [B, W, dim].
            age: Number of tokens of that phone before the position, int64 [B, W].
        """
        ended = (tokens >= self.codes).unsqueeze(-1)
        return self.code(tokens % self.codes) + ended * self.ends + script + self.age(age.clamp(max=_AGES - 1))

    def run(
        self,
        h: Tensor,
        rotary: tuple[Tensor, Tensor],
        bias: Tensor | None,
        cache: KVCache | None,
        window: WindowSlots | None,
        runs: Callable[[int], bool] | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Runs the blocks and the final norm.

        Args:
            h: Inputs, [B, W, dim].
            rotary: Cosines and sines of the rotary embedding.
            bias: Attention bias; None for causal attention.
            cache: KV cache; None for none.
            window: Slots of the cache that the keys and values are written to.
            runs: Whether a block runs, by its index; None runs all.
            states: Gets `h` and the output of every block; None keeps none.

        Returns:
            Features, the input of the head, [B, W, dim].
        """
        if states is not None:
            states.append(h)
        for i, block in enumerate(self.blocks):
            if runs is not None and not runs(i):
                continue
            h = block(h, rotary, bias, None if cache is None or window is None else (*cache.layer(i), window))
            if states is not None:
                states.append(h)
        return self.norm(h)

    def forward(self, tokens: Tensor, features: Tensor, age: Tensor) -> Tensor:
        """Teacher-forced logits [B, T, vocab_size]; those at t are of `tokens[:, t]` given the tokens before.

        Args:
            tokens: int64 [B, T].
            features: Features of the phone of each token, int64 [B, T, columns].
            age: Number of tokens of that phone before each token, int64 [B, T].
        """
        script = self.embed_script(features)
        first = (self.start + script[:, 0] + self.age(age[:, 0]))[:, None]
        h = torch.cat([first, self.embed(tokens[:, :-1], script[:, 1:], age[:, 1:])], dim=1)
        return self.head(self.run(h, self.rotary(tokens.shape[1]), None, None, None))
