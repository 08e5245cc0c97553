"""A tiny stand-in for the T3 of chatterbox-tts: the attributes and methods that `mmspec.accelerate` uses.

Its loops are written out one token after the other. tests/packages compares with the package itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from tiny_models import scatter
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mmspec.hf.cache_name import cache_input

WIDTH, CODES = 16, 24
START, STOP = CODES, CODES + 1


class Positions(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(count, WIDTH)


class T3(nn.Module):
    """See the module."""

    def __init__(
        self, is_gpt: bool = False, multilingual: bool = False, codes: int = CODES, positions: int = 64
    ) -> None:
        super().__init__()
        self.is_gpt, self.device = is_gpt, torch.device("cpu")
        self.hp = SimpleNamespace(
            start_speech_token=codes, stop_speech_token=codes + 1, is_multilingual=multilingual, input_pos_emb=None
        )
        if is_gpt:
            self.cfg: Any = GPT2Config(
                vocab_size=1, n_positions=positions, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=None,
                eos_token_id=None,
            )  # fmt: skip
            self.tfmr: Any = GPT2Model(self.cfg)
            del self.tfmr.wte
        else:
            self.cfg = LlamaConfig(
                vocab_size=4, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1,
            )  # fmt: skip
            self.tfmr = LlamaModel(self.cfg)
        self.text_emb, self.speech_emb = nn.Embedding(9, WIDTH), nn.Embedding(codes + 2, WIDTH)
        self.speech_pos_emb = None if is_gpt else Positions(64)
        self.speech_head = nn.Linear(WIDTH, codes + 2, bias=is_gpt)
        scatter(self, 0, 0.5).requires_grad_(False)
        self.speech_head.weight[self.hp.stop_speech_token].zero_()  # texts end late
        if self.speech_pos_emb is not None:
            self.speech_pos_emb.emb.weight.mul_(0.1)  # else drafts at other places are never right

    def prepare_input_embeds(
        self, *, t3_cond: Tensor, text_tokens: Tensor, speech_tokens: Tensor, cfg_weight: float = 0.0
    ) -> tuple[Tensor, int]:
        """The voice, the text (left out of the second row with guidance), and the first codes."""
        texts, speech = self.text_emb(text_tokens), self.speech_emb(speech_tokens)
        if cfg_weight > 0 and not self.is_gpt:
            texts[1].zero_()
        if self.speech_pos_emb is not None:
            speech = speech + self.speech_pos_emb.emb.weight[: speech.shape[1]]
        return torch.cat([t3_cond.expand(len(texts), -1, -1), texts, speech], dim=1), t3_cond.shape[1]

    def inference(
        self, *, t3_cond: Tensor, text_tokens: Tensor, initial_speech_tokens: Tensor | None = None,
        prepend_prompt_speech_tokens: Tensor | None = None, num_return_sequences: int = 1,
        max_new_tokens: int | None = None, stop_on_eos: bool = True, do_sample: bool = True, temperature: float = 0.8,
        top_p: float = 0.95, min_p: float = 0.05, length_penalty: float = 1.0, repetition_penalty: float = 1.2,
        cfg_weight: float = 0.5,
    ) -> Tensor:  # fmt: skip
        """It reads `temperature`, `top_p`, `min_p`, `repetition_penalty` and `cfg_weight`, as the package does."""
        start = torch.full_like(text_tokens[:, :1], self.hp.start_speech_token)
        embeds, _ = self.prepare_input_embeds(
            t3_cond=t3_cond, text_tokens=text_tokens, speech_tokens=start, cfg_weight=cfg_weight
        )
        assert self.speech_pos_emb is not None and max_new_tokens is not None
        places = self.speech_pos_emb.emb.weight
        embeds = torch.cat([embeds, (self.speech_emb(start) + places[0])], dim=1)
        warpers = [
            RepetitionPenaltyLogitsProcessor(repetition_penalty), TemperatureLogitsWarper(temperature),
            MinPLogitsWarper(min_p), TopPLogitsWarper(top_p),
        ]  # fmt: skip

        def read(step: int, code: Tensor) -> Tensor:
            return (self.speech_emb(code) + places[step]).expand(2, -1, -1)

        def combine(logits: Tensor) -> Tensor:
            return logits[:1] + cfg_weight * (logits[:1] - logits[1:])

        return self.loop(embeds, warpers, [start[:1]], max_new_tokens, read, combine, 0)

    def inference_turbo(
        self, t3_cond: Tensor, text_tokens: Tensor, temperature: float = 0.8, top_k: int = 1000, top_p: float = 0.95,
        repetition_penalty: float = 1.2, max_gen_len: int = 1000,
    ) -> Tensor:  # fmt: skip
        """The penalty follows the other settings."""
        start = torch.full_like(text_tokens[:, :1], self.hp.start_speech_token)
        embeds, _ = self.prepare_input_embeds(t3_cond=t3_cond, text_tokens=text_tokens, speech_tokens=start)
        warpers: list[LogitsProcessor] = [TemperatureLogitsWarper(temperature)] if temperature > 0 else []
        warpers += [TopKLogitsWarper(top_k)] if top_k else []
        warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        warpers.append(RepetitionPenaltyLogitsProcessor(repetition_penalty))
        codes = self.loop(
            embeds, warpers, [start], max_gen_len + 1, lambda step, code: self.speech_emb(code), lambda z: z, 1
        )
        return codes[:, :-1] if codes[0, -1] == self.hp.stop_speech_token else codes

    @torch.inference_mode()
    def loop(
        self,
        embeds: Tensor,
        warpers: list[LogitsProcessor],
        seen: list[Tensor],
        length: int,
        read: Callable[[int, Tensor], Tensor],
        combine: Callable[[Tensor], Tensor],
        endless: int,
    ) -> Tensor:
        """One code after the other; the first `endless` codes do not end it, and start the penalty's history anew."""
        cache: Any = DynamicCache()
        warp, codes = LogitsProcessorList(warpers), []
        for step in range(1, length + 1):
            out = self.tfmr(inputs_embeds=embeds, use_cache=True, **cache_input(self.tfmr, cache))
            logits = combine(self.speech_head(out.last_hidden_state[:, -1]))
            code = warp(torch.cat(seen, 1), logits).softmax(-1).multinomial(1)
            if step == endless:
                seen = []
            seen.append(code)
            codes.append(code)
            if code == self.hp.stop_speech_token and step > endless:
                break
            embeds = read(step, code)
        return torch.cat(codes, 1)


class ChatterboxTTS:
    """The class that people call: codes of a text, and their levels in place of its codec."""

    def __init__(self, t3: T3 | None = None) -> None:
        self.t3 = T3() if t3 is None else t3
        self.voice = torch.linspace(-1, 1, 3 * WIDTH).view(1, 3, WIDTH)

    def generate(self, text: str, min_p: float = 0.05, temperature: float = 0.8) -> Tensor:
        texts = torch.tensor([[ord(letter) % 9 for letter in text]] * 2)
        codes = self.t3.inference(
            t3_cond=self.voice, text_tokens=texts, max_new_tokens=30, min_p=min_p, temperature=temperature
        )
        return codes[0][codes[0] < self.t3.hp.start_speech_token] / CODES


class ChatterboxTurboTTS(ChatterboxTTS):
    """The same, with a T3 that has a GPT-2."""

    def __init__(self, positions: int = 64) -> None:
        super().__init__(T3(is_gpt=True, positions=positions))

    def generate(  # type: ignore[override]
        self, text: str, top_k: int = 1000, temperature: float = 0.8, repetition_penalty: float = 1.2
    ) -> Tensor:
        texts = torch.tensor([[ord(letter) % 9 for letter in text]])
        codes = self.t3.inference_turbo(
            t3_cond=self.voice, text_tokens=texts, max_gen_len=30, top_k=top_k, temperature=temperature,
            repetition_penalty=repetition_penalty,
        )  # fmt: skip
        return codes[0][codes[0] < self.t3.hp.start_speech_token] / CODES


for kind in (T3, ChatterboxTTS, ChatterboxTurboTTS):
    kind.__module__ = "chatterbox.stand_in"
for method in (T3.inference, T3.inference_turbo):
    method.__module__ = "chatterbox.stand_in"
