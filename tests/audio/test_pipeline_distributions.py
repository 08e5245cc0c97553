"""Pipelines sample as the models' own `generate` does, with the published generation configs.

Each test compares 1,000 samples of a pipeline at its defaults with as many of `generate`. The limit is exceeded once in
a million tests if both have one distribution. That the comparison finds wrong defaults is shown for `top_k` with each
model: without it, or with one that the checkpoint lacks, the limit is exceeded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import published
import pytest
import tiny_higgs
import tiny_music
import tiny_speech
import torch
from part_runs import decode_rows
from torch import Tensor
from transformers import DiaTokenizer, GenerationConfig
from transformers.models.bark.generation_configuration_bark import (
    BarkCoarseGenerationConfig,
    BarkSemanticGenerationConfig,
)
from two_samples import worst

import mmspec
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.speech import STYLES
from mmspec.audio.models.higgs.prompt import HiggsPrompt
from mmspec.audio.multi_codebook.delay_pattern import undelay
from mmspec.recipes import parse

ROWS, CODES = 1000, 64
CODEC = SimpleNamespace(codebooks=2, codebook_size=CODES, tables=list)


def configure(model: Any, name: str, **ids: Any) -> None:
    """Gives a model the published generation config, with its own ids."""
    config = {key: value for key, value in published.read(name, "generation_config").items() if "token_id" not in key}
    model.generation_config = GenerationConfig(**{**config, **ids})


def tokens_of(pipe: Any, top_k: int | None = None) -> Tensor:
    """The tokens of samples of a pipeline at its defaults, int64 [ROWS, N, ...]."""
    (part,) = pipe.read("one", None).parts
    recipe, sampling = parse(pipe.adapter.recipe), pipe._sampling(None, top_k, None, None)
    tokens = decode_rows(pipe.adapter, [part] * ROWS, recipe, sampling, range(ROWS))
    return tokens


def check(own: Tensor, sample: Callable[..., Tensor]) -> None:
    own = own.flatten(1)
    assert worst(own, sample().flatten(1)) < 1
    assert worst(own, sample(top_k=0).flatten(1)) > 1


def test_csm() -> None:
    model = tiny_speech.csm(codebooks=3, codes=CODES, spread=0.05)
    configure(model, "csm-1b", pad_token_id=0, max_new_tokens=None)
    depth = {"do_sample": True, "temperature": 0.9, "top_k": 50}  # the config's `depth_decoder_` values
    model.depth_decoder.generation_config.update(**depth)
    for name in depth:
        delattr(model.generation_config, f"depth_decoder_{name}")
    pipe = mmspec.load(model, processor=tiny_speech.tokenizer(), config={"frames": 2})
    ids = torch.tensor(pipe.read("one", None).parts[0].ids).expand(ROWS, -1)
    torch.manual_seed(0)
    own = model.generate(ids, max_new_tokens=2)
    check(own, lambda **how: tokens_of(pipe, **how))


def test_llasa() -> None:
    """With the model card's call of `generate`; its ids are those of its stream on both sides."""
    stream = StreamFormat(CODES, first=11, end=10)
    style = replace(STYLES["llasa"], stream=stream, prompt=lambda *text: [1, 2, 3], tokens=2)
    model = tiny_speech.flat(vocab_size=11 + CODES, spread=0.05)
    codec = SimpleNamespace(codebooks=1, codebook_size=CODES, tables=list)
    pipe = mmspec.load(model, processor=tiny_speech.tokenizer(), config={"style": style, "codec": codec})
    ids = torch.tensor([1, 2, 3]).expand(ROWS, -1)
    torch.manual_seed(0)
    own = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=True, temperature=0.8, top_p=1,
        eos_token_id=10, pad_token_id=10, prefix_allowed_tokens_fn=stream.allowed_tokens_fn(3),
    )[:, 3:]  # fmt: skip
    check(own - 10, lambda **how: tokens_of(pipe, **how))


def test_dia() -> None:
    model = tiny_music.dia(2, codes=CODES, delays=(0, 1), text_ids=256, spread=0.1)
    ids = {"eos_token_id": CODES, "pad_token_id": CODES + 1, "bos_token_id": CODES + 2}
    configure(model, "dia-1.6b-0626", max_length=None, **ids)
    pipe = mmspec.load(model, processor=DiaTokenizer(), config={"codec": CODEC})
    pipe.adapter.frames = 4
    words = DiaTokenizer()(["[S1] one"] * ROWS, return_tensors="pt")
    torch.manual_seed(0)
    begin = torch.full((ROWS, 1, 2), CODES + 2)
    inputs = {"decoder_input_ids": torch.cat([begin, begin], 1), "decoder_attention_mask": torch.ones(ROWS, 2)}
    inputs["decoder_input_ids"][:, 1, 0] = CODES + 1
    own = model.generate(**words, max_new_tokens=5, **inputs)[:, 1:4]
    check(own, lambda **how: tokens_of(pipe, **how)[:, :3])


def test_higgs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_higgs.model(3, codes=CODES, codebooks=2, spread=0.05)
    configure(model, "higgs-audio-v2-3b-base", eos_token_id=260, pad_token_id=256)
    processor = tiny_higgs.processor()
    pipe = mmspec.load(model, processor=processor, config={"codec": CODEC, "frames": 2, "scene": None})
    prompt = HiggsPrompt(torch.tensor([1, 2, 3, model.config.audio_bos_token_id]), torch.empty(0, 0))
    monkeypatch.setattr(pipe.adapter, "_prompt", lambda part: prompt)  # a short one
    ids = prompt.ids.expand(ROWS, -1)
    torch.manual_seed(0)
    own = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4)[:, 1:4]
    check(own, lambda **how: tokens_of(pipe, **how)[:, 1:4])


def test_musicgen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_music.musicgen(codes=CODES, codebooks=2, spread=0.05)
    configure(model, "musicgen-melody", max_length=None, pad_token_id=CODES, decoder_start_token_id=CODES)
    pipe = mmspec.load(model, processor=tiny_music.tokenizer()).with_duration(2 * tiny_music.FRAME)
    words, found = tiny_music.tokenizer()(["one"] * ROWS, return_tensors="pt"), list[Tensor]()

    def decode(codes: Tensor, *others: Any, **more: Any) -> Any:
        found.append(codes)
        return SimpleNamespace(audio_values=torch.zeros(ROWS, 1, 1))

    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        patch.setattr(model.audio_encoder, "decode", decode)  # own `generate` returns audio only
        model.generate(**words, max_new_tokens=3)
    own = found[0][0].transpose(1, 2).flatten(1)

    def sample(**how: Any) -> Tensor:
        return undelay(tokens_of(pipe, **how), [0, 1])

    check(own, sample)


@pytest.mark.parametrize("stage", ["semantic", "coarse"])
def test_bark(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def pad(model: Any, coarse: Tensor, *others: Any) -> Tensor:
        return torch.nn.functional.pad(coarse, (0, 2))

    monkeypatch.setattr("mmspec.audio.models.bark.stages.generate_fine", pad)  # takes its rows one by one
    model = tiny_speech.bark(spread=0.1, codes=CODES)
    settings = published.read("bark", "generation_config")
    ours = model.generation_config
    for part in ("semantic_config", "coarse_acoustics_config", "fine_acoustics_config"):
        drawn = {name: settings[part][name] for name in ("do_sample", "temperature", "top_k") if name in settings[part]}
        getattr(ours, part).update(drawn, **({"max_new_tokens": 3} if part == "semantic_config" else {}))
    pipe = mmspec.load(model, processor=Words())
    words = Words()("one")
    configs = (
        BarkSemanticGenerationConfig(**ours.semantic_config),
        BarkCoarseGenerationConfig(**ours.coarse_acoustics_config),
    )
    torch.manual_seed(0)
    ids, mask = (words[name].expand(ROWS, -1) for name in ("input_ids", "attention_mask"))
    own = model.semantic.generate(ids, configs[0], attention_mask=mask, min_eos_p=0.2)
    if stage == "coarse":
        own, lengths = model.coarse_acoustics.generate(own, *configs, codebook_size=CODES, return_output_lengths=True)
        own = ((own.view(ROWS, -1, 2) - CODES) % CODES)[:, :2]
        own = torch.where(torch.arange(2)[:, None] < lengths[:, None, None] // 2, own, CODES)
    else:
        own = torch.nn.functional.pad(own, (0, 3 - own.shape[1]), value=CODES)

    def sample(**how: Any) -> Tensor:
        tokens = tokens_of(pipe, **how)
        tokens = tokens[:, :2, :2] if stage == "coarse" else tokens[:, :3, -1]
        return torch.where(tokens < 0, CODES, tokens)

    check(own, sample)


class Words:
    """A BarkProcessor in miniature."""

    def __call__(self, text: str) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor([[1, 2, 0, 0, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 0, 0, 0, 0]])}
