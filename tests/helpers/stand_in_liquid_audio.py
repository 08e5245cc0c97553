"""A tiny stand-in for the model of liquid-audio: what `mmspec.accelerate` uses of it, and generators of frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from tiny_models import scatter
from torch import Tensor, nn

WIDTH, TEXT = 16, 5


class Layers(nn.Module):
    """Causal attention whose keys and values are returned, as those of the package's layers along the depth."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.scale: Tensor | None = None  # made by the first call and kept, as the package moves its frequencies

    def forward_cached(self, x: Tensor, cache: Any = None) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        out = []
        for layer, before in zip(self.layers, cache or [None, None], strict=True):
            self.scale = torch.ones(3 * WIDTH) if self.scale is None else self.scale
            query, key, value = (layer(x) * self.scale).chunk(3, dim=-1)
            if before is not None:
                key, value = (torch.cat(pair, dim=1) for pair in zip(before, (key, value), strict=True))
            seen = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril(key.shape[1] - query.shape[1])
            x = x + F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], attn_mask=seen)[:, 0]
            out.append((key, value))
        return x, out


class Table(nn.Embedding):
    """The embedding of a codebook, which is its head too."""

    def get_logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight)


class LFM2AudioModel(nn.Module):
    """See the module. A call yields a text id, and then frames of codes."""

    def __init__(self, seed: int = 0, codebooks: int = 6, codes: int = 12) -> None:
        super().__init__()
        self.codebooks, self.audio_vocab_size = codebooks, codes
        self.lfm, self.depth_linear = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, codebooks * WIDTH)
        self.depthformer = Layers()
        self.depth_embeddings = nn.ModuleList(Table(codes, WIDTH) for _ in range(codebooks))
        scatter(self, seed, 0.6)
        self.eval()

    @torch.no_grad()
    def generate_sequential(self, **named: Any) -> Iterator[Tensor]:
        yield from tokens_of(self, **named)

    @torch.no_grad()
    def generate_interleaved(self, **named: Any) -> Iterator[Tensor]:
        for token in tokens_of(self, **named):
            yield token
            if len(token) > 1:
                yield torch.tensor([TEXT])

    def _sample_audio_frame(
        self, embedding: Tensor, *, temperature: float | None = None, top_k: int | None = None
    ) -> Tensor:
        given, code, cache, codes = self.depth_linear(embedding).view(self.codebooks, -1), 0, None, list[Tensor]()
        for own, table in zip(given, self.depth_embeddings, strict=True):
            assert isinstance(table, Table)
            hidden, cache = self.depthformer.forward_cached((own + code)[None, None], cache)
            logits = table.get_logits(hidden[0, 0])
            if not temperature or top_k == 1:
                codes.append(logits.argmax(keepdim=True))
            else:
                kept = logits / temperature
                least = kept.topk(len(kept) if top_k is None else top_k).values[-1]
                codes.append(kept.masked_fill(kept < least, -torch.inf).softmax(0).multinomial(1))
            code = table(codes[-1])[0]
        return torch.cat(codes)


def tokens_of(
    model: LFM2AudioModel, text: Tensor, max_new_tokens: int = 20, audio_temperature: float | None = None,
    audio_top_k: int | None = None,
) -> Iterator[Tensor]:  # fmt: skip
    """Both generators, neither of which calls the other one in the package either."""
    yield torch.tensor([TEXT])
    hidden = text
    for _ in range(max_new_tokens - 1):
        hidden = model.lfm(hidden, hidden)
        frame = model._sample_audio_frame(hidden[0], temperature=audio_temperature, top_k=audio_top_k)
        if int(frame[0]) == model.audio_vocab_size - 1:
            frame[:] = model.audio_vocab_size - 1  # as the package writes the end
        yield frame
        hidden = hidden + sum(table(code) for table, code in zip(model.depth_embeddings, frame, strict=True))


for each in (LFM2AudioModel, *(getattr(LFM2AudioModel, name) for name in (
    "generate_sequential", "generate_interleaved", "_sample_audio_frame"
))):  # fmt: skip
    each.__module__ = "liquid_audio.model.lfm2_audio"
