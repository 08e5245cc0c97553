"""Two threads on one model never see each other's data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import tiny_speech
import torch
from tiny_latents import pocket_processor, tiny, vibevoice, vibevoice_processor
from tiny_speech import tokenizer

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.speech import FlatAdapter
from mmspec.audio.models.flat.style import Style
from mmspec.audio.models.pocket.decoding import embed_prompt
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

THREADS = 8

# diffusers hands tensors to NumPy in its solver.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(call: Callable[[int], Any], rounds: int) -> list[list[Any]]:
    """The results of `call(i)`, called `rounds` times by thread i, all threads at the same time."""
    barrier = Barrier(THREADS)

    def work(i: int) -> list[Any]:
        barrier.wait()
        return [call(i) for _ in range(rounds)]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


@pytest.mark.parametrize("family", ["pocket", "phonon"])
def test_prompts_of_pocket_are_embedded_as_its_forward_does(family: str) -> None:
    model, width = tiny(family), 4 if family == "pocket" else 6
    generator = torch.Generator().manual_seed(0)
    ids = torch.tensor([[3, 30, 30, 5, 6, 33], [30, 7, 8, 9, 10, 33]])
    voices = torch.randn(2, 2, width, generator=generator)
    with_voice = {
        "input_ids": ids,
        "audio_prompt_latents": voices,
        "audio_prompt_latents_mask": torch.tensor([[1, 1], [1, 0]]),
        "attention_mask": (ids != 3).long(),
    }
    for prompt in (with_voice, {"input_ids": torch.tensor([[5, 6, 7, 33]])}):
        caught: list[torch.Tensor] = []
        layer = model.model.layers[0]
        hook = layer.register_forward_pre_hook(lambda _, args, kw, c=caught: c.append(args[0]), with_kwargs=True)
        with torch.no_grad():
            model.model(**prompt, use_cache=False)
            hook.remove()
            assert torch.equal(embed_prompt(model, prompt), caught[0])


@pytest.mark.parametrize("family", ["pocket", "phonon"])
def test_threads_embed_their_own_prompts(family: str) -> None:
    model = tiny(family)
    prompts = [{"input_ids": torch.full((1, 3 + i), 5 + i)} for i in range(THREADS)]
    with torch.no_grad():
        alone = [embed_prompt(model, dict(prompt)) for prompt in prompts]

        def call(i: int) -> bool:
            with torch.no_grad():
                return torch.equal(embed_prompt(model, dict(prompts[i])), alone[i])

        assert all(all(found) for found in in_threads(call, 30))


def flat() -> Any:
    def prompt(tokens: Any, text: str, voice: str | None) -> list[int]:
        return list(tokens(text)["input_ids"])

    style = Style(StreamFormat(16, 11, 10), prompt, SamplingParams(0.9), (RepetitionPenalty(1.2),), 12, letters=14)
    return SpeechPipeline(
        FlatAdapter(tiny_speech.flat(vocab_size=27), tokenizer(), codec_of(tiny_codecs.xcodec2()), style)
    )


def latents(family: str) -> Callable[[], Any]:
    def make() -> Any:
        pipe = mmspec.load(tiny(family), processor=pocket_processor())
        pipe.adapter.frames = 5
        return pipe

    return make


def dialogue() -> Any:
    return mmspec.load(vibevoice(), processor=vibevoice_processor(), config={"frames": 4})


WORDS = ("hello", "big", "world", "again")
PIPELINES: dict[str, tuple[Callable[[], Any], tuple[str, ...], dict[str, Any]]] = {
    "flat": (flat, ("one two six. seven three", "two", "three one", "eight"), {"recipe": "recycle:window=4"}),
    "pocket": (latents("pocket"), WORDS, {"recipe": "scd+tolerance:window=3,distance=0.5"}),
    "phonon": (latents("phonon"), WORDS, {}),
    "vibevoice": (dialogue, WORDS, {"recipe": "few-steps+tolerance:distance=0.1,window=3"}),
    "spoken": (lambda: mmspec.load("spoken"), ("one", "two", "three four", "five"), {}),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_threads_hear_their_own_text(name: str) -> None:
    make, texts, options = PIPELINES[name]
    pipe = make()
    nothing = np.zeros((1, 0))
    alone = [pipe(texts[i % len(texts)], seed=i, **options) for i in range(THREADS)]

    def call(i: int) -> Any:
        if i % 4 == 3:
            return np.concatenate([nothing, *pipe.stream(texts[i % len(texts)], seed=i, **options)], axis=-1)
        return pipe(texts[i % len(texts)], seed=i, **options)

    for i, found in enumerate(in_threads(call, 1)):
        for one in found:
            if isinstance(one, np.ndarray):
                np.testing.assert_allclose(one, alone[i].audio, atol=1e-4)
            else:
                for tokens, own in zip(one.tokens, alone[i].tokens, strict=True):
                    torch.testing.assert_close(tokens, own, atol=1e-4, rtol=0)


def test_threads_see_their_own_image() -> None:
    pipe = mmspec.load("shapes")
    pipe.set_progress_bar_config(disable=True)
    prompts = ["a red circle", "a blue square above a green circle"]

    def image(i: int) -> Any:
        return np.asarray(pipe(prompts[i % 2], seed=i % 2).images[0])

    alone = [image(i) for i in range(2)]
    for i, found in enumerate(in_threads(image, 1)):
        assert all(np.array_equal(one, alone[i % 2]) for one in found)
