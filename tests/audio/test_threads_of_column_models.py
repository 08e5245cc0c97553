"""Eight threads on one model: every call has the tokens that it has alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tiny_codecs
import tiny_higgs
import tiny_music
import tiny_speech
import torch
from torch import Tensor
from transformers import DiaTokenizer

import mmspec
from mmspec.audio.codecs import codec_of

TEXTS = ["one", "two three", "three", "one two", "eight", "two", "one one", "three two one"]


class Words:
    """A BarkProcessor in miniature."""

    def __call__(self, text: str) -> dict[str, Tensor]:
        ids = torch.tensor([[len(word) for word in text.split()] + [0] * (6 - len(text.split()))])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def bark() -> Any:
    model = tiny_speech.bark()
    model.generation_config.fine_acoustics_config["temperature"] = 0.5
    return mmspec.load(model, processor=Words())


def dia() -> Any:
    model = tiny_music.dia(2, text_ids=256)
    pipe = mmspec.load(model, processor=DiaTokenizer(), config={"codec": codec_of(tiny_codecs.dac())})
    pipe.adapter.frames = 8
    return pipe


PIPELINES: dict[str, Callable[[], Any]] = {
    "csm": lambda: mmspec.load(tiny_speech.csm(codes=8), processor=tiny_speech.tokenizer(), config={"frames": 4}),
    "dia": dia,
    "higgs": lambda: mmspec.load(tiny_higgs.model(3), processor=tiny_higgs.processor(), config={"frames": 6}),
    "bark": bark,
    "musicgen": lambda: mmspec.load(tiny_music.long_musicgen(), processor=tiny_music.tokenizer()).with_duration(0.05),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_calls_in_eight_threads_equal_calls_alone(name: str) -> None:
    pipe = PIPELINES[name]()

    def call(i: int) -> Tensor:
        tokens: Tensor = pipe(TEXTS[i % 8], seed=i, temperature=1.0).tokens[0]
        return tokens

    alone = [call(i) for i in range(8)]
    state = torch.random.get_rng_state()
    with ThreadPoolExecutor(8) as threads:
        for again in (threads.map(call, range(8)), threads.map(call, range(8))):
            assert all(torch.equal(a, b) for a, b in zip(alone, again, strict=True))
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing is drawn from the global generator
