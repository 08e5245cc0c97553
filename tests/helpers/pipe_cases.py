"""Every model class with requests that an engine decodes: prompts, options and recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import every_pipe
import golden_qwen3_tts
import tiny_kyutai
import tiny_llamagen
import tiny_models
import tiny_speech
from frame_models import random_head

import mmspec
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

WORDS = ["a red dog", "cat", "a green cat", "red", "green green dog", "a dog"]
TEXTS = ["one", "two three", "one two", "three two one", "eight", "two"]
LONG = ["One two three four. " * 5, "two", "Two one, two one. " * 6, "one"]  # some in several parts
SONGS = ["[verse]\none two", "[verse]\ntwo\n\n[chorus]\none", "[verse]\nthree"]
LATENT = ["hello big world", "again", "big hello", "world again hello", "hello"]


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
    prompts: Sequence[Any] = tuple(TEXTS[:4])
    options: Callable[[int], Mapping[str, Any]] = lambda i: {}
    recipes: tuple[str, ...] = ("scd:window=4",)
    groups: int = 1


def mixed(i: int) -> Mapping[str, Any]:
    """Sampling parameters of request i."""
    return [{}, {"temperature": 0.8, "top_k": 5}, {"top_p": 0.8}][i % 3]


def sized(height: int, width: int) -> Callable[[int], Mapping[str, Any]]:
    return lambda i: {"height": height, "width": width, **mixed(i)}


def classes(_: Path) -> Any:
    return LlamaGenPipeline(tiny_llamagen.tiny(model_type="c2i", num_classes=9, cls_token_num=1), guidance_scale=2.0)


def csm(ahead: int) -> Callable[[Path], Any]:
    def make(_: Path) -> Any:
        config = {"frames": 4, "ahead": ahead, "draft_model": tiny_speech.csm(1, codes=8, layers=1)}
        return mmspec.load(tiny_speech.csm(codes=8), processor=tiny_speech.tokenizer(), config=config)

    return make


def csm_with_a_head(folder: Path) -> Any:
    pipe = csm(0)(folder)
    pipe.adapter.heads["frame"] = random_head(7, 24, 4)
    return pipe


def qwen3_tts(kind: str, **options: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> Any:
        return mmspec.load(str(golden_qwen3_tts.copy(folder / kind, kind)), config={"frames": 8, **options})

    return make


def kyutai_voice(folder: Path) -> Any:
    """A model whose voice is the beginning of the audio, which has none of it."""
    voice = ReferenceCodes("", tiny_kyutai.prefix(5).T)
    config = {"codec": tiny_kyutai.Codec(), "voice": voice, "cfg": 2.0, "frames": 20}
    where = tiny_kyutai.write(folder, tiny_kyutai.prefix_config())
    return mmspec.load(str(where), processor=tiny_kyutai.Words(), config=config)


def ahead(name: str, frames: int) -> Callable[[Path], Any]:
    """A pipeline whose windows have several frames."""

    def make(folder: Path) -> Any:
        pipe = EVERY[name](folder)
        pipe.adapter.ahead = frames
        return pipe

    return make


EVERY = {**every_pipe.SPEECH, **every_pipe.MUSIC, **every_pipe.IMAGES}
TWO = ("scd:window=4", "recycle:window=3")
# Their processors have the sampling parameters of the request: others have a batch of their own.
OWN_BATCHES: dict[str, Any] = {"options": mixed, "groups": 3}
IMAGES = {
    "janus": Case(EVERY["janus"], WORDS, mixed, TWO),
    "emu3": Case(EVERY["emu3"], WORDS, lambda i: {"height": 32, "width": 32, "temperature": 1 - i / 10}, TWO),
    "chameleon": Case(EVERY["chameleon"], WORDS, mixed, TWO),
    "glm": Case(EVERY["glm"], WORDS[:3], sized(32, 64)),
    "imagegpt": Case(lambda _: mmspec.load(tiny_models.imagegpt()), [None] * 4, mixed, TWO),
    "simplear": Case(EVERY["simplear"], WORDS, sized(32, 48)),
    "llamagen": Case(classes, [*"31415"], lambda i: [{}, {"guidance_scale": 4.0}][i % 2], TWO),
}
SOUND = {
    "flat": Case(EVERY["flat"], [*TEXTS[:4], "one two six. seven. eight three"], mixed, TWO),
    **{name: Case(EVERY[name]) for name in ("soprano", "outetts", "kani", "ace-step", "step-audio2")},
    "yue": Case(EVERY["yue"], SONGS),
    "csm": Case(csm(0), TEXTS, mixed, ("scd:window=4", "draft:window=3", "plain")),
    "csm-ahead": Case(csm(2), TEXTS, recipes=TWO),
    "csm-head": Case(csm_with_a_head, TEXTS, mixed, ("frame:window=9",)),
    "qwen3-tts": Case(qwen3_tts("custom_voice"), TEXTS, mixed),
    "qwen3-tts-ahead": Case(qwen3_tts("custom_voice", ahead=2), TEXTS[:4], mixed, ("scd",)),
    "qwen3-tts-spoken-while-read": Case(qwen3_tts("custom_voice", non_streaming_mode=False)),
    "qwen3-tts-design": Case(qwen3_tts("voice_design", instruct="calm"), LONG, mixed),
    "fish-s2": Case(EVERY["fish-s2"], **OWN_BATCHES),
    "fish-s2-ahead": Case(ahead("fish-s2", 2)),
    "moss-local": Case(EVERY["moss-local"], **OWN_BATCHES),
    "moss-local-v1": Case(EVERY["moss-local-v1"], **OWN_BATCHES),
    "moss-tts": Case(EVERY["moss-tts"]),
    "zonos2": Case(EVERY["zonos2"]),
    "kyutai-tts": Case(EVERY["kyutai-tts"]),
    "kyutai-tts-ahead": Case(ahead("kyutai-tts", 2), recipes=("scd",)),
    "kyutai-tts-voice": Case(kyutai_voice),
    "lfm2-audio": Case(EVERY["lfm2-audio"], TEXTS, mixed, ("scd:window=4", "plain")),
    "lfm2-audio-ahead": Case(ahead("lfm2-audio", 2), recipes=TWO),
    "personaplex": Case(EVERY["personaplex"]),
    "heartmula": Case(EVERY["heartmula"]),
    "qwen3-omni": Case(EVERY["qwen3-omni"], groups=3),
    "qwen2.5-omni": Case(EVERY["qwen2.5-omni"], groups=3),
    "chatterbox": Case(EVERY["chatterbox"], TEXTS[:4], mixed),
    "chatterbox-turbo": Case(EVERY["chatterbox-turbo"], **OWN_BATCHES),
    "chatterbox-multilingual": Case(EVERY["chatterbox-multilingual"]),
    "cosyvoice": Case(EVERY["cosyvoice"], ["ab", "c", "abc", "d"], lambda i: {"temperature": 1 - i % 2 / 10}, groups=2),
    "minicpm-o": Case(EVERY["minicpm-o"], **OWN_BATCHES),
    "dia": Case(EVERY["dia"], TEXTS, recipes=TWO),
    "higgs": Case(EVERY["higgs"], TEXTS, mixed, TWO),
    "higgs-v3": Case(EVERY["higgs-v3"]),
    "pocket": Case(
        EVERY["pocket"], LATENT, lambda i: {"temperature": 0.9 - i / 10},
        ("plain", "scd+tolerance:window=3,distance=0.5", "layer-skip+smoothed:layers=1,sigma=0.3,window=4"),
    ),
    "musicgen": Case(EVERY["musicgen"], TEXTS, lambda i: {"guidance_scale": 1.0 + i}, TWO, groups=2),
    # Their rows are in step: none joins.
    "bark": Case(EVERY["bark"], [*TEXTS[:3], "one two. " * 30], mixed, groups=4),
    "magnet": Case(EVERY["magnet"], TEXTS[:3], lambda i: {"temperature": 3.0 - i}, ("plain",), groups=4),
    "vibevoice": Case(
        EVERY["vibevoice"], [*LATENT[:2], "Speaker 0: yes\nSpeaker 1: no"], recipes=("plain",), groups=4
    ),
    "spoken": Case(EVERY["spoken"], ["one", "two", "three four", "five"], mixed, ("table:window=8", "scd")),
}  # fmt: skip
CASES = {**IMAGES, **SOUND}
