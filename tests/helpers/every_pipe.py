"""A tiny pipeline of every adapter that reads texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import golden_qwen3_tts
import tiny_ace_step
import tiny_amused
import tiny_chatterbox
import tiny_codecs
import tiny_cosyvoice
import tiny_emu35
import tiny_fish_s2
import tiny_flat_images
import tiny_heartmula
import tiny_higgs
import tiny_higgs_v3
import tiny_kani
import tiny_kyutai
import tiny_latents
import tiny_lfm2_audio
import tiny_magnet
import tiny_minicpm_o
import tiny_models
import tiny_moss
import tiny_moss_local
import tiny_moss_local_v1
import tiny_music
import tiny_omni
import tiny_outetts
import tiny_personaplex
import tiny_processors
import tiny_soprano
import tiny_spark
import tiny_speech
import tiny_step_audio2
import tiny_xomni
import tiny_yue
import tiny_zonos2
import torch
from tiny_chatterbox import Levels, MeanLevels
from torch import Tensor
from transformers import DiaTokenizer, Qwen3Config, Qwen3ForCausalLM

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.codec_lm import chatterbox_turbo
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.spark import SPEAKER
from mmspec.audio.models.flat.speech import FlatAdapter
from mmspec.audio.models.flat.style import Style
from mmspec.audio.models.heartmula import model
from mmspec.audio.models.heartmula.model import Flavor
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.pipeline import TransformersPipeline
from mmspec.vision.hf.xomni import XOmniConfig, XOmniForCausalLM

METADATA = {"bpm": 100, "keyscale": "C major", "timesignature": "4"}
Make = Callable[[Path], Any]


class _Letters:
    """A tokenizer of letters, for models whose own one is a package's."""

    def encode(self, text: str) -> list[int]:
        return [3 + ord(letter) % 40 for letter in text]

    def __call__(self, text: str, return_tensors: str = "pt") -> dict[str, Tensor]:
        ids = torch.tensor([self.encode(text)])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class _Chat(_Letters):
    def apply_chat_template(self, messages: Any, add_generation_prompt: bool, tokenize: bool) -> str:
        return str(messages[-1]["content"][0]["text"])

    def __call__(self, text: str, return_tensors: str = "pt") -> dict[str, Tensor]:
        ids = tiny_omni.prompts([[3 + n % 4 for n in self.encode(text)]])["input_ids"]
        return {"input_ids": ids}

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids))


def _flat(_: Path) -> Any:
    def prompt(tokens: Any, text: str, voice: str | None) -> list[int]:
        return list(tokens(text)["input_ids"])

    style = Style(StreamFormat(16, 11, 10), prompt, SamplingParams(0.9), (RepetitionPenalty(1.2),), 12, letters=14)
    codec = codec_of(tiny_codecs.xcodec2())
    return SpeechPipeline(FlatAdapter(tiny_speech.flat(vocab_size=27), tiny_speech.tokenizer(), codec, style))


def _spark(folder: Path) -> Any:
    config = {"style": "spark", "codec": MeanLevels(1 + SPEAKER, 8192), "gender": "male"}
    return mmspec.load(str(tiny_spark.spark(folder)), config=config)


def _outetts(folder: Path) -> Any:
    (folder / "speaker.json").write_text(json.dumps(tiny_outetts.SPEAKER))
    codec = codec_of(tiny_codecs.mimi(codebooks=2, codebook_size=1024))
    config = {"style": "outetts", "codec": codec, "speaker": str(folder / "speaker.json")}
    return mmspec.load(str(tiny_outetts.outetts(folder / "model")), config=config)


def _kani(folder: Path) -> Any:
    codec = codec_of(tiny_codecs.mimi(codebooks=4, codebook_size=4096))
    return mmspec.load(str(tiny_kani.kani(folder)), config={"style": "kani", "codec": codec})


def _ace_step(_: Path) -> Any:
    config = {"style": "ace-step", "codec": Levels(tiny_ace_step.CODES), "metadata": METADATA}
    return mmspec.load(tiny_ace_step.model(), processor=tiny_ace_step.tokenizer(), config=config).with_duration(10)


def _yue(_: Path) -> Any:
    config = {"style": "yue", "codec": MeanLevels(2, 1024), "genres": "pop", "tokens": 4}
    return mmspec.load(tiny_yue.model(), processor=_Letters(), config=config)


def _heartmula(folder: Path) -> Any:
    flavors = {name: Flavor(*sizes) for name, sizes in tiny_heartmula.SIZES.items()}
    with patch.dict(model.FLAVORS, flavors):
        config = {"codec": MeanLevels(4, 40), "frames": 10, "tags": "night"}
        return mmspec.load(str(tiny_heartmula.write(folder)), config=config)


def _kyutai(folder: Path) -> Any:
    config = {"codec": tiny_kyutai.Codec(), "voice": tiny_kyutai.kyutai(folder) / "voice.safetensors", "cfg": 1.5}
    return mmspec.load(str(folder), processor=tiny_kyutai.Words(), config={**config, "frames": 20})


def _personaplex(folder: Path) -> Any:
    voice = ReferenceCodes("", tiny_personaplex.user(4, 7))
    config = {"codec": tiny_personaplex.Codec(), "voice": voice}
    pipe = mmspec.load(str(tiny_personaplex.personaplex(folder)), processor=tiny_personaplex.Letters(), config=config)
    pipe.adapter.user = tiny_personaplex.user(6)
    return pipe


def _few(make: Make, tokens: int = 16) -> Make:
    """With parts of few tokens."""

    def made(folder: Path) -> Any:
        pipe = make(folder)
        object.__setattr__(pipe.adapter.style, "tokens", tokens)
        return pipe

    return made


def _published(write: Callable[[Path], Any], **config: Any) -> Make:
    return lambda folder: mmspec.load(str(write(folder)), config=config)


def _chatterbox(write: Callable[[Path], Any], **config: Any) -> Make:
    """With at most 12 codes."""

    def make(folder: Path) -> Any:
        pipe = mmspec.load(str(write(folder)), config={"codec": Levels(6561), **config})
        prompt = pipe.adapter.frontend.prompt

        def short(text: str) -> Any:
            with patch.object(chatterbox_turbo, "MAX_CODES", 12):
                return replace(prompt(text), max_codes=12)

        pipe.adapter.frontend.prompt = short
        return pipe

    return make


def _minicpm_o(folder: Path) -> Any:
    """With at most 12 codes."""
    pipe = mmspec.load(str(tiny_minicpm_o.minicpm_o(folder)), config={"codec": Levels(tiny_minicpm_o.CODES)})
    prompt = pipe.adapter.frontend.prompt
    pipe.adapter.frontend.prompt = lambda text: replace(prompt(text), min_codes=3, max_codes=12)
    return pipe


def _pocket(_: Path) -> Any:
    model = tiny_latents.tiny("pocket")
    model.generation_config.temperature, model.generation_config.do_sample = 0.7, True
    model.generation_config.eos_threshold = 0.02
    return mmspec.load(model, processor=tiny_latents.pocket_processor())


def _magnet(folder: Path) -> Any:
    tiny_magnet.write(folder)
    return mmspec.load(str(folder), config={"text_encoder": str(folder / "t5"), "steps": tiny_magnet.STEPS})


def _dia(_: Path) -> Any:
    pipe = mmspec.load(
        tiny_music.dia(2, text_ids=256), processor=DiaTokenizer(), config={"codec": codec_of(tiny_codecs.dac())}
    )
    pipe.adapter.frames = 8
    return pipe


class _Bark:
    """A BarkProcessor in miniature."""

    def __call__(self, text: str) -> dict[str, Tensor]:
        ids = torch.tensor([[len(word) % 9 for word in text.split()][:6]])
        ids = torch.nn.functional.pad(ids, (0, 6 - ids.shape[1]))
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


SPEECH: dict[str, Make] = {
    "spoken": lambda _: mmspec.load("spoken"),
    "flat": _flat,
    "soprano": _few(_published(tiny_soprano.soprano)),
    "spark": _few(_spark, 48),
    "outetts": _few(_outetts),
    "step-audio2": _few(_published(lambda at: tiny_step_audio2.step_audio2(at, 200), codec=Levels(6561))),
    "kani": _few(_kani),
    "bark": lambda _: mmspec.load(tiny_speech.bark(), processor=_Bark()),
    "csm": lambda _: mmspec.load(tiny_speech.csm(codes=8), processor=tiny_speech.tokenizer(), config={"frames": 8}),
    "dia": _dia,
    "higgs": lambda _: mmspec.load(tiny_higgs.model(3), processor=tiny_higgs.processor(), config={"frames": 6}),
    "higgs-v3": _published(tiny_higgs_v3.higgs_v3, codec=tiny_higgs_v3.Codec(), frames=5),
    "fish-s2": _published(
        tiny_fish_s2.fish_s2, codec=tiny_fish_s2.Codec(), frames=5, residual=SamplingParams(0.8, 30, 0.9)
    ),
    "moss-tts": _published(tiny_moss.moss, codec=tiny_moss.Codec(), frames=5),
    "moss-local": _published(tiny_moss_local.moss_local, codec=tiny_moss.Codec(), frames=5),
    "moss-local-v1": _published(tiny_moss_local_v1.moss_local_v1, codec=tiny_moss.Codec(), frames=5),
    "zonos2": _published(tiny_zonos2.zonos2, codec=tiny_zonos2.Codec(), frames=5),
    "kyutai-tts": _kyutai,
    "lfm2-audio": _published(tiny_lfm2_audio.lfm2_audio, codec=tiny_lfm2_audio.Codec(), frames=5),
    "personaplex": _personaplex,
    "qwen3-tts": lambda folder: mmspec.load(
        str(golden_qwen3_tts.copy(folder / "model", "custom_voice")), config={"frames": 8}
    ),
    "chatterbox": _chatterbox(tiny_chatterbox.chatterbox),
    "chatterbox-turbo": _chatterbox(tiny_chatterbox.turbo),
    "chatterbox-multilingual": _chatterbox(tiny_chatterbox.multilingual, language="fr"),
    "cosyvoice": _published(lambda at: tiny_cosyvoice.cosyvoice(at / "c")[0], codec=Levels(tiny_cosyvoice.CODES)),
    "minicpm-o": _minicpm_o,
    "pocket": _pocket,
    "vibevoice": lambda _: mmspec.load(
        tiny_latents.vibevoice(), processor=tiny_latents.vibevoice_processor(), config={"frames": 2}
    ),
    "qwen2.5-omni": lambda _: mmspec.load(
        tiny_omni.qwen2_5(), processor=_Chat(), config={"frames": 4, "answer_tokens": 3}
    ),
    "qwen3-omni": lambda _: mmspec.load(tiny_omni.qwen3(), processor=_Chat(), config={"frames": 4, "answer_tokens": 3}),
}
MUSIC: dict[str, Make] = {
    "musicgen": lambda _: mmspec.load(tiny_music.long_musicgen(), processor=tiny_music.tokenizer()).with_duration(0.05),
    "magnet": _magnet,
    "ace-step": _ace_step,
    "yue": _yue,
    "heartmula": _heartmula,
}


def _hf(name: str) -> Make:
    return lambda _: mmspec.load(getattr(tiny_models, name)(), processor=getattr(tiny_processors, name)())


def _layout(layout: str) -> Make:
    tokenizer, model = tiny_flat_images.tokenizer, tiny_flat_images.model
    return lambda _: mmspec.load(
        model(layout, max_position_embeddings=2048), processor=tokenizer(layout), config={"layout": layout}
    )


def _emu35(_: Path) -> Any:
    made = Qwen3ForCausalLM(Qwen3Config(**tiny_emu35.sizes()))
    tiny_emu35.fill(made.named_parameters(), 0)
    return TransformersPipeline(made.eval(), tiny_emu35.tokenizer(), layout="emu3.5")


def _xomni(_: Path) -> Any:
    made = XOmniForCausalLM(XOmniConfig(**tiny_xomni.sizes())).eval()
    tiny_xomni.fill(made.named_parameters())
    return TransformersPipeline(made, tiny_xomni.tokenizer())


IMAGES: dict[str, Make] = {
    **{name: _hf(name) for name in ("janus", "emu3", "chameleon", "glm")},
    **{name: _layout(name) for name in tiny_flat_images.KINDS if name != "emu3.5"},
    "emu3.5": _emu35,
    "x-omni": _xomni,
    "amused": lambda _: tiny_amused.tiny_amused(),
    "shapes": lambda _: mmspec.load("shapes"),
    "scenes": lambda _: mmspec.load("scenes"),
    "shapes-latent": lambda _: mmspec.load("shapes-latent"),
}
# Options of the images whose default is a published size.
SIZES: dict[str, dict[str, int]] = {
    name: {"height": side, "width": side}
    for name, side in (("emu3", 32), ("simplear", 32), ("emu3.5", 32), ("x-omni", 32))
}
