"""A tiny pipeline of every model that clones a voice from codes and their text, with parts of a few words."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import golden_qwen3_tts
import tiny_chatterbox
import tiny_codecs
import tiny_cosyvoice
import tiny_fish_s2
import tiny_higgs
import tiny_higgs_v3
import tiny_music
import tiny_speech
import torch
from torch import Tensor
from transformers import DiaTokenizer

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.codec_lm import cosyvoice
from mmspec.audio.models.csm import speech as csm
from mmspec.audio.models.dia import speech as dia
from mmspec.audio.models.fish_s2 import speech as fish_s2
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.style import Style
from mmspec.audio.models.higgs import speech as higgs
from mmspec.audio.models.higgs_v3 import speech as higgs_v3
from mmspec.audio.models.qwen3_tts import speech as qwen3_tts
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.sampling.params import SamplingParams

FRAMES = 30  # of a part, at most
WORDS = "one two three. two one three. three two one."
LETTERS = "abcdabcd abc. bcdabcda bcd. cdabcdab cda."


@dataclass(frozen=True)
class CloningModel:
    """A model that clones.

    Attributes:
        make: Its pipeline, with or without a voice.
        frames: The frames int64 [F, K] in the prompt of a part, in order.
        letters: What sets the number of letters of a part.
        text: A text of three parts.
        most: Letters of a part.
        seed: A seed whose first two parts, sampled plainly at `temperature`, have audio and end before their limit.
    """

    make: Callable[[Path, bool], Any]
    frames: Callable[[Any, Any], Tensor]
    letters: Any = None
    text: str = WORDS
    most: int = 16
    seed: int = 3
    temperature: float | None = None

    def load(self, folder: Path, voiced: bool) -> Any:
        """The pipeline."""
        return self.make(folder, voiced)

    def short_parts(self) -> Any:
        """A context in which texts are split into parts of a few words."""
        short: dict[str, Any] = {
            name: self.most for name in ("MAX_LETTERS", "MIN_LETTERS") if hasattr(self.letters, name)
        }
        return patch.multiple(self.letters, **short) if short else nullcontext()


def voice(codebooks: int, codes: int = 4) -> ReferenceCodes:
    """A voice of five frames."""
    return ReferenceCodes("two", torch.arange(5 * codebooks).reshape(5, codebooks) % codes)


def _csm(_: Path, voiced: bool) -> Any:
    model = tiny_speech.csm(0, codes=4, codebooks=2)
    model.config.max_position_embeddings = 2048
    tokens, codec = tiny_speech.tokenizer(), codec_of(model.codec_model)
    reference = voice(2) if voiced else None
    return SpeechPipeline(csm.CsmAdapter(model, tokens, codec, frames=FRAMES, reference=reference))


def _dia(_: Path, voiced: bool) -> Any:
    model, codec = tiny_music.dia(1, text_ids=256), codec_of(tiny_codecs.dac())
    model.config.decoder_config.max_position_embeddings = 256
    processor = SimpleNamespace(tokenizer=DiaTokenizer(), audio_tokenizer=None)
    reference = ReferenceCodes("[S1] two", voice(3).codes) if voiced else None
    return SpeechPipeline(dia.DiaAdapter(model, processor, codec, frames=FRAMES, reference=reference))


def _higgs(_: Path, voiced: bool) -> Any:
    model, processor = tiny_higgs.model(4), tiny_higgs.processor()
    codec, reference = codec_of(processor.audio_tokenizer), voice(3) if voiced else None
    return SpeechPipeline(higgs.HiggsAdapter(model, processor, codec, frames=FRAMES, reference=reference))


def _published(write: Callable[[Path], Any], codec: Any, books: int) -> Callable[[Path, bool], Any]:
    def make(folder: Path, voiced: bool) -> Any:
        config = {"codec": codec(), "frames": FRAMES} | ({"voice": voice(books)} if voiced else {})
        return mmspec.load(str(write(folder)), config=config)

    return make


def _qwen3_tts(folder: Path, voiced: bool) -> Any:
    kind = "base" if voiced else "voice_design"
    pipe = mmspec.load(str(golden_qwen3_tts.copy(folder / kind, kind)), config={"frames": FRAMES})
    wave = golden_qwen3_tts.expected()["reference"][None].numpy()
    return pipe.with_reference_audio(wave, 24000, "Hi there.") if voiced else pipe


def _cosyvoice(folder: Path, voiced: bool) -> Any:
    config = {"codec": tiny_chatterbox.Levels(tiny_cosyvoice.CODES)}
    given = {"voice": ReferenceCodes("ab", voice(1).codes[:, 0])} if voiced else {}
    return mmspec.load(str(tiny_cosyvoice.cosyvoice(folder / "model")[0]), config={**config, **given})


def _flat(_: Path, voiced: bool) -> Any:
    def prompt(tokens: Any, text: str, name: str | None) -> list[int]:
        return list(tokens(text)["input_ids"])

    def continued(tokens: Any, text: str, voice: ReferenceCodes) -> list[int]:
        return [*prompt(tokens, voice.transcript, None), *(voice.codes + 11).tolist(), *prompt(tokens, text, None)]

    style = Style(StreamFormat(16, 11, 10), prompt, SamplingParams(0.9), (), FRAMES, letters=9, voice_prompt=continued)
    config = {"style": style, "codec": codec_of(tiny_codecs.xcodec2())}
    given = {"voice": ReferenceCodes("two", voice(1).codes[:, 0])} if voiced else {}
    model = tiny_speech.flat(vocab_size=27)
    model.config.max_position_embeddings = 2048
    return mmspec.load(model, processor=tiny_speech.tokenizer(), config={**config, **given})


def _codes_of_ids(adapter: Any, part: Any) -> Tensor:
    """The codes in a prompt, whose ids follow those of all words."""
    ids = torch.tensor(part.ids)
    return ids[ids >= 11][:, None] - 11


def _codes_of_embeddings(adapter: Any, part: Any) -> Tensor:
    """The codes at the end of a prompt."""
    frontend = adapter.frontend
    prompt = frontend.prompt(part) if isinstance(part, str) else frontend.prompt_after(part.text, part.context)
    same = (prompt.cond[:, None] == frontend.codec_lm.embed.weight[: frontend.codes]).all(-1)
    return torch.stack([row.nonzero()[0] for row in same if row.any()])


CLONING = {
    "csm": CloningModel(_csm, lambda adapter, part: torch.cat([codes for _, codes in part.context]), csm, seed=12),
    "dia": CloningModel(_dia, lambda adapter, part: part.context.codes, dia, most=21, seed=4, temperature=1.0),
    "higgs": CloningModel(_higgs, lambda adapter, part: torch.cat([each.codes for each in part.context]), higgs),
    "higgs-v3": CloningModel(
        _published(tiny_higgs_v3.higgs_v3, tiny_higgs_v3.Codec, tiny_higgs_v3.BOOKS),
        lambda adapter, part: part.voice.codes,
        higgs_v3,
    ),
    "fish-s2": CloningModel(
        _published(tiny_fish_s2.fish_s2, tiny_fish_s2.Codec, tiny_fish_s2.BOOKS),
        lambda adapter, part: adapter.prompt(part)[1],
        fish_s2,
        seed=5,
    ),
    "qwen3-tts": CloningModel(_qwen3_tts, lambda adapter, part: part.continuation.codes, qwen3_tts),
    "cosyvoice": CloningModel(_cosyvoice, _codes_of_embeddings, cosyvoice, LETTERS),
    "flat": CloningModel(_flat, _codes_of_ids, text="one two three two one two"),
}
