"""A tiny GPT-2 of XTTS, with the attributes that mmspec reads, and the calls that the package coqui-tts makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, GPT2Config, GPT2Model, GPT2PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions

from mmspec.hf.cache_name import RELEASE, cache_of

WIDTH, CODES, START, STOP = 32, 20, 20, 21
SETTINGS: dict[str, Any] = {
    "num_return_sequences": 1, "num_beams": 1, "length_penalty": 1.0, "repetition_penalty": 10.0,
    "output_attentions": False,
}  # fmt: skip


def fill(parameters: Iterator[tuple[str, nn.Parameter]], spread: float = 0.5) -> None:
    """Deterministic weights that need no random number generator."""
    for name, p in parameters:
        n = torch.arange(p.numel(), dtype=torch.float64)
        value = ((n * 12.9898 + sum(map(ord, name))).sin() * 43758.5453 % 1 - 0.5).float().view(p.shape)
        p.data = (1 + 0.2 * value) if "ln_" in name or "norm" in name else spread * value


class GPT2InferenceModel(GPT2PreTrainedModel, GenerationMixin):
    """Written after the package's class of this name: a prompt is kept, and tokens follow it."""

    config: Any

    def __init__(self, config: GPT2Config, gpt: Any, positions: nn.Embedding, embed: nn.Embedding, head: Any) -> None:
        super().__init__(config)
        self.transformer, self.embeddings, self.lm_head = gpt, embed, head
        self.pos_embedding = nn.Module()
        self.pos_embedding.emb = positions
        self.cached_prefix_emb: Tensor | None = None

    def forward(
        self, input_ids: Tensor, use_cache: Any = None, return_dict: Any = None, **inputs: Any
    ) -> CausalLMOutputWithCrossAttentions:
        assert self.cached_prefix_emb is not None
        cache: Any = inputs.get(RELEASE)
        prefix = self.cached_prefix_emb.shape[1]
        first = input_ids.shape[1] != 1
        ids = input_ids[:, prefix:] if first else input_ids
        place = 0 if first else cache.get_seq_length() - prefix
        embeds = self.embeddings(ids) + self.pos_embedding.emb.weight[place]  # type: ignore[union-attr, index]
        if first:
            repeated = self.cached_prefix_emb.repeat_interleave(len(ids) // len(self.cached_prefix_emb), 0)
            embeds = torch.cat([repeated, embeds], dim=1)
        out = self.transformer(inputs_embeds=embeds, use_cache=use_cache, **{RELEASE: cache})
        logits = self.lm_head(out.last_hidden_state)
        return CausalLMOutputWithCrossAttentions(logits=logits, **{RELEASE: cache_of(out)})


def sizes() -> dict[str, Any]:
    """The arguments of the package's class `GPT`."""
    return {
        "layers": 2, "model_dim": WIDTH, "heads": 2, "start_text_token": 8, "stop_text_token": 9, "max_text_tokens": 12,
        "max_mel_tokens": 15, "max_prompt_tokens": 8, "number_text_tokens": 10, "num_audio_tokens": CODES + 2,
        "start_audio_token": START, "stop_audio_token": STOP,
    }  # fmt: skip


class Gpt:
    """The package's class `GPT`, as far as decoding goes."""

    def __init__(self, spread: float = 0.5) -> None:
        config = GPT2Config(
            vocab_size=CODES + 2, n_positions=64, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=None,
            eos_token_id=None,
        )  # fmt: skip
        gpt: Any = GPT2Model(config)
        del gpt.wpe
        gpt.wpe = lambda places: torch.zeros(*places.shape, WIDTH)
        self.text, self.text_positions = nn.Embedding(10, WIDTH), nn.Embedding(14, WIDTH)
        embed, positions = nn.Embedding(CODES + 2, WIDTH), nn.Embedding(18, WIDTH)
        norm, head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CODES + 2)
        gpt.wte = embed
        parts = {
            "gpt": gpt, "text_embedding": self.text, "text_pos_embedding.emb": self.text_positions, "mel_head": head,
            "mel_embedding": embed, "mel_pos_embedding.emb": positions, "final_norm": norm,
        }  # fmt: skip
        for prefix, part in parts.items():
            fill(((f"{prefix}.{name}", p) for name, p in part.named_parameters() if "wte" not in name), spread)
        self.gpt_inference = GPT2InferenceModel(config, gpt, positions, embed, nn.Sequential(norm, head)).eval()

    @torch.no_grad()
    def generate(self, latents: Tensor, text: Tensor, /, **how: Any) -> Any:
        """New codes of a voice [B, P, D] and a text int64 [B, T], padded with the end."""
        ones = torch.ones_like(text[:, :1])
        text = torch.cat([8 * ones, text, 9 * ones], dim=1)
        words = self.text(text) + self.text_positions.weight[: text.shape[1]]
        self.gpt_inference.cached_prefix_emb = torch.cat([latents, words], dim=1)
        ids = torch.ones(len(text), latents.shape[1] + text.shape[1] + 1, dtype=torch.int64)
        ids[:, -1] = START
        out: Any = self.gpt_inference.generate(
            ids, bos_token_id=START, pad_token_id=STOP, eos_token_id=STOP, max_length=12 + ids.shape[1],
            attention_mask=torch.ones_like(ids), **how,
        )  # fmt: skip
        return out[:, ids.shape[1] :] if isinstance(out, Tensor) else SimpleNamespace(out=out, first=ids.shape[1])


def prompts(rows: int = 3) -> tuple[Tensor, Tensor]:
    """Voices [rows, 4, D] and texts int64 [rows, 3]."""
    n = torch.arange(rows * 4 * WIDTH, dtype=torch.float64)
    voices = ((n * 78.233).sin() * 43758.5453 % 1 - 0.5).float().view(rows, 4, WIDTH) * 4
    return voices, (torch.arange(rows * 3) * 5 % 8).view(rows, 3)
