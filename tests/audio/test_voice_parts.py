"""What a voice has, each model reads, or it refuses it in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import golden_qwen3_tts
import numpy as np
import pipe_cases
import pytest
import tiny_chatterbox
import tiny_codecs
import tiny_cosyvoice
import tiny_fish_s2
import tiny_higgs_v3
import tiny_kyutai
import tiny_moss
import tiny_moss_local
import tiny_moss_local_v1
import tiny_music
import tiny_personaplex
import tiny_spark
import torch
from cloning_models import CLONING
from every_pipe import SPEECH
from torch import Tensor, nn

import mmspec
from mmspec.audio import models
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.speech import STYLES, FlatAdapter
from mmspec.audio.models.higgs_v3.speech import HiggsV3Adapter, Options
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError

WAVE = (0.3 * np.sin(np.arange(4800) / 30)).astype(np.float32)[None]
SPEAKERS = torch.full((32,), 1), torch.full((32,), 2)


@dataclass(frozen=True)
class Voiced:
    """A model with a voice.

    Attributes:
        load: Makes its pipeline of a folder, the transcript and the codes of the speaker.
        reads: What it reads of these.
        transcripts: Two transcripts in words that it knows.
        has_speaker: Whether its voices may have codes of a speaker.
    """

    load: Callable[[Path, str, Tensor | None], Any]
    reads: tuple[str, ...] = ()
    transcripts: tuple[str, str] = ("two", "three one one")
    has_speaker: bool = True


def recording(make: Callable[[Path], Any], *reads: str) -> Voiced:
    def load(folder: Path, transcript: str, speaker: Tensor | None) -> Any:
        return make(folder).with_reference_audio(WAVE, 24000, transcript)

    return Voiced(load, reads, has_speaker=False)


def codes(save: Callable[[Path], Any], codec: Any, books: int, *reads: str, **config: Any) -> Voiced:
    processor = config.pop("processor", None)

    def load(folder: Path, transcript: str, speaker: Tensor | None) -> Any:
        voice = ReferenceCodes(transcript, torch.arange(5 * books).view(5, books) % 4, speaker)
        given = {"codec": codec, "voice": voice, **config}
        return mmspec.load(str(save(folder)), processor=processor, config=given)

    return Voiced(load, reads)


def flat(folder: Path, transcript: str, speaker: Tensor | None) -> Any:
    own, voice = CLONING["flat"].load(folder, True).adapter, ReferenceCodes(transcript, torch.arange(5), speaker)
    return SpeechPipeline(FlatAdapter(own.model, own.tokenizer, own.codec, own.style, voice=voice))


def spark(folder: Path, transcript: str, speaker: Tensor | None) -> Any:
    voice = ReferenceCodes(transcript, torch.arange(5), SPEAKERS[0] if speaker is None else speaker)
    codec, tokenizer = tiny_chatterbox.Levels(8192), tiny_spark.tokenizer()
    stream = StreamFormat(8192, tokenizer.convert_tokens_to_ids("<|bicodec_semantic_0|>"), tokenizer.eos_token_id)
    style = replace(STYLES["spark"], stream=stream, tokens=8)
    return SpeechPipeline(FlatAdapter(tiny_spark.model(), tokenizer, codec, style, voice=voice))


def dia(folder: Path) -> Any:
    pipe = CLONING["dia"].load(folder, False)
    pipe.adapter.processor.audio_tokenizer = tiny_codecs.dac()
    return pipe


def melody(_: Path) -> Any:
    return mmspec.load(tiny_music.long_musicgen(melody=True), processor=tiny_music.tokenizer())


def qwen3_tts(folder: Path) -> Any:
    return mmspec.load(str(golden_qwen3_tts.copy(folder, "base")), config={"frames": 8})


VOICES = {
    "csm": recording(SPEECH["csm"], "transcript"),
    "dia": recording(dia, "transcript"),
    "higgs": recording(SPEECH["higgs"], "transcript"),
    "qwen3_tts": recording(qwen3_tts, "transcript"),
    "pocket": recording(SPEECH["pocket"]),
    "vibevoice": recording(SPEECH["vibevoice"]),
    "musicgen": recording(melody),
    "kyutai_tts": recording(pipe_cases.kyutai_voice),
    "personaplex": recording(SPEECH["personaplex"]),
    "kyutai_tts/codes": codes(
        lambda folder: tiny_kyutai.write(folder, tiny_kyutai.prefix_config()), tiny_kyutai.Codec(), 4, cfg=2.0,
        processor=tiny_kyutai.Words(),
    ),
    "personaplex/codes": codes(
        tiny_personaplex.personaplex, tiny_personaplex.Codec(), 8, processor=tiny_personaplex.Letters()
    ),
    "moss_tts": codes(tiny_moss.moss, tiny_moss.Codec(), 3),
    "moss_local": codes(tiny_moss_local.moss_local, tiny_moss.Codec(), 3),
    "moss_local_v1": codes(tiny_moss_local_v1.moss_local_v1, tiny_moss.Codec(), 3),
    "fish_s2": codes(tiny_fish_s2.fish_s2, tiny_fish_s2.Codec(), 3, "transcript", frames=5),
    "higgs_v3": codes(tiny_higgs_v3.higgs_v3, tiny_higgs_v3.Codec(), 3, "transcript", frames=5),
    "codec_lm": Voiced(
        codes(
            lambda folder: tiny_cosyvoice.cosyvoice(folder / "c")[0], tiny_chatterbox.Levels(tiny_cosyvoice.CODES), 1
        ).load, ("transcript",), ("b", "cab"),
    ),
    "flat": Voiced(flat, ("transcript",)),
    "flat/spark": Voiced(spark, ("transcript", "speaker")),
}  # fmt: skip
PARTS = [(name, part) for name, each in VOICES.items() for part in ("transcript", *["speaker"] * each.has_speaker)]


class Enough(Exception):
    """Ends a call."""


def inputs_of(pipe: Any, text: str) -> list[Any]:
    """What the first modules that a call calls are called with."""
    found = list[Any]()

    def note(module: nn.Module, args: Any) -> None:
        found.extend((each.shape, float(each.double().sum())) for each in args if isinstance(each, Tensor))
        if len(found) > 100:
            raise Enough

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        with suppress(Enough):
            pipe(text, recipe="plain", seed=0)
    finally:
        hook.remove()
    return found


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_part_of_a_voice_is_read_or_refused(name: str, part: str, tmp_path: Path) -> None:
    case = VOICES[name]
    other = case.transcripts[0] if "transcript" in case.reads else ""
    spoken = case.transcripts if part == "transcript" else (other, other)
    given = list(zip(spoken, SPEAKERS if part == "speaker" else (None, None), strict=True))
    if part in case.reads:
        runs = [inputs_of(case.load(tmp_path / str(i), *given[i // 2]), case.transcripts[0]) for i in range(3)]
        assert runs[0] == runs[1] and runs[0] != runs[2]
        return
    with pytest.raises(ArgumentError, match=rf"^{part}=.* is not possible: .* takes only \w+( and \w+)*;") as error:
        case.load(tmp_path / "model", *given[0])
    assert "\n" not in str(error.value)


def test_every_model_with_voices_is_in_the_table() -> None:
    there = re.compile(r"def with_reference_audio|\bReferenceCodes\b")
    files = Path(str(models.__file__)).parent.rglob("*.py")
    found = {file.parent.name for file in files if there.search(file.read_text())}
    assert found <= {name.partition("/")[0] for name in VOICES}


def test_a_tokenizer_without_the_mark_of_transcripts_has_no_place_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SPEECH["higgs-v3"](tmp_path).adapter
    marks = {name: id for name, id in own.tokenizer.get_added_vocab().items() if name != "<|ref_text|>"}
    monkeypatch.setattr(own.tokenizer, "get_added_vocab", lambda: marks)
    options = Options(voice=ReferenceCodes("two", torch.ones(5, 3, dtype=torch.int64)))
    with pytest.raises(ArgumentError, match="transcript='two' is not possible: this Higgs TTS 3 takes only codes;"):
        HiggsV3Adapter(own.model, own.tokenizer, own.codec, options)


def test_a_voice_of_codes_leaves_no_named_ones(tmp_path: Path) -> None:
    """They would have no effect."""
    own = CLONING["flat"].load(tmp_path, True).adapter
    style, voice = replace(own.style, voices=("anna",)), ReferenceCodes("two", torch.arange(5))
    named, given = (FlatAdapter(own.model, own.tokenizer, own.codec, style, voice=each) for each in (None, voice))
    assert named.voices == ("anna",)
    with pytest.raises(ArgumentError, match="voice='anna' is not allowed; this model has no voices to choose from"):
        SpeechPipeline(given)("one", voice="anna")
