"""A tiny stand-in for the language models of CosyVoice 2 and 3: what `mmspec.accelerate` uses of them.

The loop draws one code after the other, as that of github.com/FunAudioLLM/CosyVoice of March 2026 does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from tiny_models import scatter
from torch import Tensor, nn
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from mmspec.hf.cache_name import cache_input

WIDTH = 16


def ras_sampling(
    scores: Tensor, before: list[int], sampling: int, top_p: float = 0.8, top_k: int = 25, win_size: int = 10,
    tau_r: float = 0.1,
) -> int:  # fmt: skip
    """A code of the nucleus; one that is repetitive is replaced by another one of them all."""
    likely, ids = scores.softmax(0).sort(descending=True, stable=True)
    size = min(int((likely.cumsum(0) - likely < top_p).sum()), top_k)
    code = int(ids[likely[:size].multinomial(1)])
    if before[-win_size:].count(code) < win_size * tau_r:
        return code
    scores[code] = -torch.inf
    return int(scores.softmax(0).multinomial(1))


def earlier_ras_sampling(
    scores: Tensor, before: list[int], sampling: int, top_p: float = 0.8, top_k: int = 25, win_size: int = 10,
    tau_r: float = 0.1,
) -> int:  # fmt: skip
    """As before February 2026, when the second code may be the first again."""
    code = ras_sampling(scores.clone(), [], sampling, top_p, top_k, win_size, tau_r)
    again = before[-win_size:].count(code) >= win_size * tau_r
    return int(scores.softmax(0).multinomial(1)) if again else code


class Qwen2LM(nn.Module):
    """See the module; `third` has the ids of CosyVoice 3, whose end is the second one after the codes."""

    def __init__(self, codes: int = 24, third: bool = False, sampler: Any = ras_sampling, **settings: Any) -> None:
        super().__init__()
        ids = codes + (8 if third else 3)
        self.speech_token_size, self.stop_token_ids = codes, list(range(codes, ids))
        config = Qwen2Config(
            vocab_size=4, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1,
        )  # fmt: skip
        self.llm = nn.ModuleDict({"model": Qwen2ForCausalLM(config)})
        self.llm.__dict__["model"] = self.llm["model"]
        self.llm_decoder, self.speech_embedding = nn.Linear(WIDTH, ids), nn.Embedding(ids, WIDTH)
        self.sampling = partial(sampler, **settings)
        scatter(self, 0, 0.5).requires_grad_(False).eval()
        self.llm_decoder.weight[codes:] = 0.0  # texts end late
        self.llm_decoder.bias[codes:] = -4.0
        self.llm_decoder.bias[codes + int(third)] = 0.0

    def sampling_ids(self, scores: Tensor, before: list[int], sampling: int, ignore_eos: bool = True) -> int:
        if ignore_eos:
            scores[self.speech_token_size] = -torch.inf
        code: int = self.sampling(scores, before, sampling)
        return code

    @torch.inference_mode()
    def inference_wrapper(
        self, lm_input: Tensor, sampling: int, min_len: int, max_len: int, uuid: str
    ) -> Iterator[int]:
        decoder: Any = self.llm["model"].model
        cache: Any = DynamicCache()
        codes: list[int] = []
        for step in range(max_len):
            hidden = decoder(inputs_embeds=lm_input, use_cache=True, **cache_input(decoder, cache)).last_hidden_state
            scores = self.llm_decoder(hidden[0, -1]).log_softmax(-1)
            code = self.sampling_ids(scores, codes, sampling, step < min_len)
            if code in self.stop_token_ids:
                return
            yield code
            codes.append(code)
            lm_input = self.speech_embedding.weight[code].view(1, 1, -1)

    def inference(self, text: str, longest: int = 40) -> Iterator[int]:
        """The codes of a text, at least two."""
        prompt = torch.tensor([[ord(letter) % 7 - 3.0 for letter in text.ljust(WIDTH)[:WIDTH]]] * 3)[None] / 3
        yield from self.inference_wrapper(prompt, 25, 2, longest, "")


class CosyVoice2:
    """The class that people call; its model holds the part that is accelerated."""

    def __init__(self, lm: Qwen2LM) -> None:
        self.model = SimpleNamespace(llm=lm)

    def inference_zero_shot(self, text: str) -> list[int]:
        return list(self.model.llm.inference(text))


for each in (Qwen2LM, CosyVoice2, ras_sampling, earlier_ras_sampling, Qwen2LM.inference_wrapper):
    each.__module__ = "cosyvoice.stand_in"
earlier_ras_sampling.__name__ = "ras_sampling"
