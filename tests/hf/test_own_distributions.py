"""The distributions that Janus and MusicGen sample from, and ours, with options that are not their defaults.

Both follow the most likely tokens, so that every position of three texts of different lengths is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models
import tiny_processors
import torch
from tiny_music import long_musicgen, tokenizer
from torch import Tensor
from transformers.generation import GenerationMixin

import mmspec
from mmspec.sampling.sampler import ColumnSampler, TokenSampler

OPTIONS: list[dict[str, Any]] = [
    {"top_k": 0},
    {"top_k": 0, "top_p": 0.6},
    {"top_k": 5, "temperature": 0.7},
    {"top_k": 0, "min_p": 0.3},
    {"top_k": 0, "typical_p": 0.5},
    {"top_k": 7, "top_p": 0.8, "temperature": 1.4, "min_p": 0.05},
]


def its_own(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[list[Tensor], Any]:
    """The distributions that `torch.multinomial` is called with, and the result for the most likely tokens."""
    seen: list[Tensor] = []

    def multinomial(probs: Tensor, num_samples: int) -> Tensor:
        seen.append(probs)
        return probs.argmax(-1, keepdim=True)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "multinomial", multinomial)
        return seen, call()


def ours(monkeypatch: pytest.MonkeyPatch, kind: type[Any], call: Callable[[], Any]) -> tuple[list[Tensor], Any]:
    """The same of a sampler, with the tokens that are forced."""
    seen: list[Tensor] = []
    real = kind.verify

    def verify(self: Any, p: Tensor, *more: Any) -> Any:
        seen.append(p * 1.0)
        best = torch.nn.functional.one_hot(seen[-1].argmax(-1), seen[-1].shape[-1])
        return real(self, best.float(), *more)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "verify", verify)
        return seen, call()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_janus(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor, texts = tiny_models.janus(), tiny_processors.janus(), ["a red dog", "cat", "a green cat a dog"]
    chats = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in texts]
    prompts = processor.apply_chat_template(chats, add_generation_prompt=True)
    inputs = processor(text=prompts, generation_mode="image", padding=True, padding_side="left", return_tensors="pt")
    inputs.pop("generation_mode", None)
    call = {**inputs, "do_sample": True, "guidance_scale": 2.0, **options}
    expected, tokens = its_own(monkeypatch, lambda: model.generate(**call, generation_mode="image"))
    found, _ = ours(
        monkeypatch,
        TokenSampler,
        lambda: GenerationMixin.generate(
            model, **call, max_new_tokens=16, recipe="plain", custom_generate=mmspec.generate
        ),
    )
    pipe = mmspec.load(model, processor=processor)
    pipe.set_progress_bar_config(disable=True)
    again, out = ours(
        monkeypatch,
        TokenSampler,
        lambda: pipe(texts, guidance_scale=2.0, recipe="plain", seed=0, output_type="latent", **options),
    )
    assert torch.equal(out.tokens, tokens) and len(expected) == 16
    for p, own, piped in zip(expected, found, again, strict=True):
        assert torch.allclose(own.view_as(p), p, atol=1e-4) and torch.allclose(piped.view_as(p), p, atol=1e-4)


@pytest.mark.parametrize("scale", [1, 3.0])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_musicgen(options: dict[str, Any], scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, columns = long_musicgen(), 9
    words = tokenizer()(["slow quiet piano", "loud drums", "x"], padding=True, return_tensors="pt")
    call = {**words, "do_sample": True, "max_new_tokens": columns, "guidance_scale": scale, **options}
    expected, audio = its_own(monkeypatch, lambda: model.generate(**call))
    found, made = ours(
        monkeypatch,
        ColumnSampler,
        lambda: GenerationMixin.generate(model, **call, recipe="plain", custom_generate=mmspec.generate),
    )
    assert torch.allclose(made, audio, atol=1e-5)
    books = model.decoder.num_codebooks
    for column, (p, own) in enumerate(zip(expected, found, strict=True)):
        # The delays leave the others of a column without a choice.
        free = [book for book in range(books) if 0 <= column - book <= columns - books]
        assert torch.allclose(own.view(3, books, -1)[:, free], p.view(3, books, -1)[:, free], atol=1e-5)
