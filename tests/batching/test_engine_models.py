"""Engines of real model classes: a request that joins a running batch gets the tokens that it gets alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import golden_qwen3_tts
import numpy as np
import pytest
import tiny_chatterbox
import tiny_codecs
import tiny_cosyvoice
import tiny_flat_images
import tiny_higgs
import tiny_latents
import tiny_llamagen
import tiny_magnet
import tiny_models
import tiny_music
import tiny_processors
import tiny_speech
import torch
from torch import Tensor
from transformers import DiaTokenizer

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.speech import FlatAdapter
from mmspec.audio.models.flat.style import Style
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.batching.engine import Engine
from mmspec.hf import causal_target
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams
from mmspec.vision.llamagen import graph_cache
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

# diffusers hands tensors to NumPy in its solver.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

WORDS = ["a red dog", "cat", "a green cat", "red", "green green dog", "a dog"]
TEXTS = ["one", "two three", "one two", "three two one", "eight", "two"]
LONG = ["One two three four. " * 5, "two", "Two one, two one. " * 6, "one"]  # some in several parts


@dataclass(frozen=True)
class Case:
    """A pipeline and its requests.

    Attributes:
        make: Makes the pipeline.
        prompts: Their prompts.
        options: The other arguments of each request.
        recipes: The recipes to test.
        groups: The largest number of batches that run at a time: more than one if requests cannot share a batch.
    """

    make: Callable[[Path], Any]
    prompts: list[Any]
    options: Callable[[int], Mapping[str, Any]] = lambda i: {}
    recipes: tuple[str, ...] = ("scd:window=4", "recycle:window=3")
    groups: int = 1


def images(name: str) -> Callable[[Path], Any]:
    def make(_: Path) -> Any:
        return mmspec.load(getattr(tiny_models, name)(), processor=getattr(tiny_processors, name)())

    return make


def flat_images(layout: str) -> Callable[[Path], Any]:
    def make(_: Path) -> Any:
        tokenizer = tiny_flat_images.tokenizer(layout)
        return mmspec.load(tiny_flat_images.model(layout), processor=tokenizer, config={"layout": layout})

    return make


def classes(_: Path) -> Any:
    return LlamaGenPipeline(tiny_llamagen.tiny(model_type="c2i", num_classes=9, cls_token_num=1), guidance_scale=2.0)


def flat(_: Path) -> Any:
    def prompt(tokens: Any, text: str, voice: str | None) -> list[int]:
        return list(tokens(text)["input_ids"])

    style = Style(StreamFormat(16, 11, 10), prompt, SamplingParams(0.9), (RepetitionPenalty(1.2),), 12, letters=14)
    model, tokenizer = tiny_speech.flat(vocab_size=27), tiny_speech.tokenizer()
    return SpeechPipeline(FlatAdapter(model, tokenizer, codec_of(tiny_codecs.xcodec2()), style))


def csm(ahead: int) -> Callable[[Path], Any]:
    def make(_: Path) -> Any:
        config = {"frames": 4, "ahead": ahead, "draft_model": tiny_speech.csm(1, codes=8, layers=1)}
        return mmspec.load(tiny_speech.csm(codes=8), processor=tiny_speech.tokenizer(), config=config)

    return make


def qwen3_tts(kind: str, ahead: int) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        options = {"instruct": "calm"} if kind == "voice_design" else {}
        config = {"frames": 8, "ahead": ahead, **options}
        return mmspec.load(str(golden_qwen3_tts.copy(folder / kind, kind)), config=config)

    return make


def chatterbox(folder: Path) -> Any:
    pipe = mmspec.load(str(tiny_chatterbox.chatterbox(folder)), config={"codec": tiny_chatterbox.Levels(6561)})
    prompt = pipe.adapter.frontend.prompt
    pipe.adapter.frontend.prompt = lambda text: replace(prompt(text), max_codes=12)
    return pipe


def turbo(folder: Path) -> Any:
    pipe = mmspec.load(str(tiny_chatterbox.turbo(folder)), config={"codec": tiny_chatterbox.Levels(6561)})
    prompt = pipe.adapter.frontend.prompt

    def short(text: str) -> Any:
        with patch("mmspec.audio.models.codec_lm.chatterbox_turbo.MAX_CODES", 12):
            return prompt(text)

    pipe.adapter.frontend.prompt = short
    return pipe


def cosyvoice(folder: Path) -> Any:
    where, _ = tiny_cosyvoice.cosyvoice(folder / "c")
    return mmspec.load(str(where), config={"codec": tiny_chatterbox.Levels(tiny_cosyvoice.CODES)})


def higgs(_: Path) -> Any:
    return mmspec.load(tiny_higgs.model(3), processor=tiny_higgs.processor(), config={"frames": 6})


def dia(_: Path) -> Any:
    model = tiny_music.dia(2, text_ids=256)
    pipe = mmspec.load(model, processor=DiaTokenizer(), config={"codec": codec_of(tiny_codecs.dac())})
    pipe.adapter.frames = 8
    return pipe


def musicgen(_: Path) -> Any:
    return mmspec.load(tiny_music.long_musicgen(), processor=tiny_music.tokenizer()).with_duration(0.05)


def mixed(i: int) -> Mapping[str, Any]:
    """Sampling parameters of request i."""
    return [{}, {"temperature": 0.8, "top_k": 5}, {"top_p": 0.8}][i % 3]


def pocket(_: Path) -> Any:
    model = tiny_latents.tiny("pocket")
    model.generation_config.temperature, model.generation_config.do_sample = 0.7, True
    model.generation_config.eos_threshold = 0.02
    return mmspec.load(model, processor=tiny_latents.pocket_processor())


class Words:
    """A processor of Bark: an id for each word."""

    def __call__(self, text: str) -> dict[str, Tensor]:
        ids = torch.tensor([[len(word) for word in text.split()][:6]])
        ids = torch.nn.functional.pad(ids, (0, 6 - ids.shape[1]))
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def bark(_: Path) -> Any:
    return mmspec.load(tiny_speech.bark(), processor=Words())


def vibevoice(_: Path) -> Any:
    return mmspec.load(tiny_latents.vibevoice(), processor=tiny_latents.vibevoice_processor(), config={"frames": 6})


def magnet(folder: Path) -> Any:
    config = {"text_encoder": str(tiny_magnet.write(folder) / "t5"), "steps": tiny_magnet.STEPS}
    return mmspec.load(str(folder), config=config)


CASES = {
    "janus": Case(images("janus"), WORDS, mixed),
    "emu3": Case(images("emu3"), WORDS, lambda i: {"height": 32, "width": 32, "temperature": 1 - i / 10}),
    "chameleon": Case(images("chameleon"), WORDS, mixed),
    "glm": Case(images("glm"), WORDS[:3], lambda i: {"height": 32, "width": 64, **mixed(i)}, ("scd:window=4",)),
    "imagegpt": Case(lambda _: mmspec.load(tiny_models.imagegpt()), [None] * 4, mixed),
    "simplear": Case(
        flat_images("simplear"), WORDS, lambda i: {"height": 32, "width": 48, **mixed(i)}, ("scd:window=4",)
    ),
    "llamagen": Case(classes, [3, 1, 4, 1, 5], lambda i: [{}, {"guidance_scale": 4.0}][i % 2]),
    "flat": Case(flat, TEXTS, mixed),
    "csm": Case(csm(0), TEXTS, mixed, ("scd:window=4", "draft:window=3", "plain")),
    "csm-ahead": Case(csm(2), TEXTS),
    "qwen3-tts": Case(qwen3_tts("custom_voice", 0), TEXTS, mixed, ("scd:window=4",)),
    "qwen3-tts-ahead": Case(qwen3_tts("custom_voice", 2), TEXTS[:4], mixed, ("scd",)),
    "qwen3-tts-design": Case(qwen3_tts("voice_design", 0), LONG, mixed, ("scd:window=4",)),
    "chatterbox": Case(chatterbox, TEXTS[:4], mixed, ("scd:window=4",)),
    # Their processors have the sampling parameters of the request: others have a batch of their own.
    "chatterbox-turbo": Case(turbo, TEXTS[:4], mixed, ("scd:window=4",), groups=3),
    "cosyvoice": Case(cosyvoice, ["ab", "c", "abc", "d"], lambda i: {"temperature": 1 - i % 2 / 10}, groups=2),
    "dia": Case(dia, TEXTS),
    "higgs": Case(higgs, TEXTS, mixed),
    "pocket": Case(
        pocket,
        ["hello big world", "again", "big hello", "world again hello", "hello"],
        lambda i: {"temperature": 0.9 - i / 10},
        ("plain", "scd+tolerance:window=3,distance=0.5", "layer-skip+smoothed:layers=1,sigma=0.3,window=4"),
    ),
    "musicgen": Case(musicgen, TEXTS, lambda i: {"guidance_scale": 1.0 + i}, groups=2),
    # Their rows are in step: none joins.
    "bark": Case(bark, [*TEXTS[:3], "one two. " * 30], mixed, ("scd:window=4",), groups=4),
    "magnet": Case(magnet, TEXTS[:3], lambda i: {"temperature": 3.0 - i}, ("plain",), groups=4),
    "vibevoice": Case(
        vibevoice, ["hello big world", "again", "Speaker 0: yes\nSpeaker 1: no"], recipes=("plain",), groups=4
    ),
    "spoken": Case(
        lambda _: mmspec.load("spoken"), ["one", "two", "three four", "five"], mixed, ("table:window=8", "scd")
    ),
}


SLOW = {"glm", "qwen3-tts-ahead"}


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        pytest.param(name, recipe, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, case in CASES.items()
        for recipe in case.recipes
    ],
)
def test_a_request_gets_the_tokens_that_it_gets_alone(name: str, recipe: str, tmp_path: Path) -> None:
    case = CASES[name]
    pipe = case.make(tmp_path)
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    engine = Engine(pipe, recipe, max_rows=4)
    requests = [(prompt, {"seed": 7 * i, **case.options(i)}) for i, prompt in enumerate(case.prompts)]
    found: dict[str, Any] = {}
    given: dict[str, list[Tensor]] = {}
    added, most = 0, 0
    while added < len(requests) or engine.has_unfinished:
        if added < len(requests):
            prompt, options = requests[added]
            engine.add(prompt, request_id=str(added), output_type="latent", **options)
            added += 1
        for output in engine.step():
            given.setdefault(output.request_id, []).append(output.tokens)
            if output.finished:
                assert output.error is None, output.error
                found[output.request_id] = output
        most = max(most, len(engine._groups))
    for i, (prompt, options) in enumerate(requests):
        call = {"class_labels" if isinstance(prompt, int) else "prompt": prompt, "output_type": "latent"}
        if isinstance(pipe, SpeechPipeline):
            call = {"text": prompt}
        whole = pipe(**call, **options, recipe=recipe)
        tokens = found[str(i)].result.tokens
        for own, alone in zip(tokens, whole.tokens, strict=True):
            if own.is_floating_point():  # batches of other shapes round differently
                torch.testing.assert_close(pipe.adapter.codes(own), pipe.adapter.codes(alone), atol=1e-4, rtol=1e-4)
                continue
            assert torch.equal(own, alone)
        parts = [each for each in given[str(i)] if len(each)]
        assert torch.equal(torch.cat(parts), torch.cat(list(tokens)))
    assert most <= case.groups


SPEECH = [name for name, case in CASES.items() if isinstance(case.prompts[0], str) and case.prompts is not WORDS]


@pytest.mark.parametrize("name", [name for name in SPEECH if name not in {*SLOW, "glm", "simplear"}])
def test_streams_have_the_audio_of_a_call_of_several_texts(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    pipe, texts, how = case.make(tmp_path), case.prompts[:3], {"recipe": case.recipes[0]}
    for i, whole in enumerate(pipe(texts, seed=5, batch_size=2, **how)):
        chunks = [np.zeros_like(whole.audio[:, :0]), *pipe.stream(texts[i], seed=5 + i, first=2, every=3, **how)]
        np.testing.assert_allclose(np.concatenate(chunks, axis=-1), whole.audio, atol=1e-4)


@pytest.mark.parametrize("name", ["dia", "musicgen"])
def test_rows_join_columns_with_captured_calls(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below, with texts of several lengths."""
    monkeypatch.setattr(causal_target, "use_cuda_graphs", lambda device: True)
    test_a_request_gets_the_tokens_that_it_gets_alone(name, "scd:window=4", tmp_path)


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4"])
def test_rows_join_targets_with_captured_calls(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU captured calls run eagerly, through the same buffers and places of rows as on a CUDA device."""
    monkeypatch.setattr(graph_cache, "use_cuda_graphs", lambda device: True)
    pipe = classes(Path())
    pipe.set_progress_bar_config(disable=True)
    labels = [3, 1, 4, 1, 5, 0, 2]
    engine, found = Engine(pipe, recipe, max_rows=4), dict[str, Tensor]()
    for i, label in enumerate(labels):
        engine.add(label, request_id=str(i), seed=i, output_type="latent")
        for output in engine.step() + engine.step():
            if output.finished:
                found[output.request_id] = output.result.tokens[0]
    while engine.has_unfinished:
        found |= {output.request_id: output.result.tokens[0] for output in engine.step() if output.finished}
    for i, label in enumerate(labels):
        alone = pipe(class_labels=label, seed=i, recipe=recipe, output_type="latent")
        assert torch.equal(found[str(i)], alone.tokens[0])
