"""Voices that Spark makes up, against prompts, codes and probabilities of its package."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_spark
import torch
from part_runs import decode_rows, distance_of_probs

import mmspec
from mmspec.audio.codec import OverlapStream
from mmspec.audio.models.flat.spark import SPEAKER, MadeUpVoice, WithSpeaker, made_up_style, with_speaker
from mmspec.audio.models.flat.speech import FlatAdapter
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.decoding.target import Target
from mmspec.errors import ArgumentError, ModelError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_windows

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "spark.json").read_text())
CALLS = GOLDEN["calls"]
LIMITS = [f"<|bicodec_{kind}_{code}|>" for kind, last in (("semantic", 8191), ("global", 4095)) for code in (0, last)]


class VoiceCodec:
    """A sample per code, of the code and its speaker."""

    sampling_rate, channels, hop, codebooks, codebook_size = 50, 1, 1, 1 + SPEAKER, 8192

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        assert codes.shape[1] == self.codebooks
        return codes.float().mean(1, keepdim=True) / 8192

    def stream(self) -> OverlapStream:
        return OverlapStream(self, 0, 0)

    def tables(self) -> list[torch.Tensor]:
        return [torch.arange(8192)[:, None].float()] * self.codebooks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The adapter of a folder."""
    path = tiny_spark.spark(tmp_path_factory.mktemp("spark"))
    config = {"style": "spark", "codec": VoiceCodec(), "gender": "male"}
    return mmspec.load(str(path), config=config).adapter


def pipeline(folder: Any, call: dict[str, Any], **more: Any) -> Any:
    """A pipeline whose parts have as many tokens as were recorded."""
    attributes = {name: call[name] for name in ("gender", "pitch", "speed")}
    options = {"style": "spark", "codec": VoiceCodec(), **attributes, **more}
    pipe = mmspec.load(folder.model, processor=folder.tokenizer, config=options)
    own = pipe.adapter
    style = replace(own.style, tokens=GOLDEN["length"])
    return SpeechPipeline(FlatAdapter(own.model, own.tokenizer, own.codec, style))


def parts(folder: Any) -> list[Any]:
    return [pipeline(folder, call).read(call["text"], None).parts[0] for call in CALLS]


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=6", "tree:branch=2/1,layers=1"])
def test_greedy_voices_are_the_packages(folder: Any, recipe: str) -> None:
    """Three prompts of several lengths in a batch; the speaker and the speech as the package reads them."""
    adapter, rows, params = pipeline(folder, CALLS[0]).adapter, parts(folder), [SamplingParams(0.0)] * 3
    assert [part.ids for part in rows] == [call["prompt"] for call in CALLS]
    found = decode_rows(adapter, rows, parse(recipe), params[0], [0, 1, 2])
    for tokens, call in zip(found, CALLS, strict=True):
        assert tokens.tolist() == call["tokens"]
        frames = adapter.codes(tokens)
        assert frames[0].tolist() == call["speech"] and len(call["speech"])
        assert frames[1:, 0].tolist() == call["speaker"][:SPEAKER]


def test_probabilities_are_the_packages(folder: Any) -> None:
    """The twin has no top-k, which the package's call names."""
    adapter = pipeline(folder, CALLS[0]).adapter

    def distance(params: SamplingParams) -> float:
        rows = zip(parts(folder), CALLS, strict=True)
        return max(distance_of_probs(adapter, part, params, call["tokens"], call["probs"]) for part, call in rows)

    assert adapter.sampling == SamplingParams(0.8, 50, 0.95)
    assert distance(adapter.sampling) < 1e-5
    assert distance(SamplingParams(0.8, 0, 0.95)) > 1e-3


@pytest.mark.releases
def test_windows_match_single_tokens(folder: Any) -> None:
    adapter, (part, *_) = pipeline(folder, CALLS[0]).adapter, parts(folder)

    def make(rows: int, window: int) -> Target:
        params = [SamplingParams(0.0)] * rows
        found: Target = adapter.prepare_rows([part] * rows, parse(f"scd:window={window}"), params).target
        return found

    assert check_windows(make, 16) < 1e-4


def test_later_parts_keep_the_voice(folder: Any) -> None:
    adapter = pipeline(folder, CALLS[0]).adapter
    first, second = parts(folder)[:2]
    tokens = torch.tensor(CALLS[0]["tokens"])
    semantic = adapter.style.marked.first
    spoken = torch.cat([tokens[(tokens < semantic) | (tokens >= semantic + 8192)][:SPEAKER], torch.tensor([semantic])])
    found = adapter.continue_voice(second, first, spoken)
    assert adapter.draws_voice and found.ids == [*second.ids, *spoken[:SPEAKER].tolist()]
    assert found.speaker.tolist() == CALLS[0]["speaker"][:SPEAKER]
    codec, codes = adapter.part_codec(found), torch.tensor([[[5, 6]]])
    assert isinstance(codec, WithSpeaker)
    with pytest.raises(ModelError, match="the model wrote no speaker, which has 32 codes"):
        adapter.part_codec(first).decode(codes)
    stream = codec.stream()
    pushed = torch.cat([stream.push(codes), stream.finish()], dim=-1)
    assert torch.equal(codec.decode(codes), pushed) and pushed.shape == (1, 1, 2)
    # Speech before its speaker waits for it; a part that continues keeps its speaker.
    speaker = torch.arange(SPEAKER)
    late = torch.cat([codes, torch.full((1, 1, 2), 7)], dim=-1)
    stream = adapter.part_codec(first).stream()
    chunks = [stream.push(codes), stream.push(with_speaker(late[..., 2:], speaker)), stream.finish()]
    assert not chunks[0].shape[-1]
    assert torch.equal(torch.cat(chunks, dim=-1), VoiceCodec().decode(with_speaker(late, speaker)))
    assert torch.equal(codec.decode(with_speaker(codes, speaker)), codec.decode(codes))
    stream = adapter.part_codec(first).stream()
    stream.push(codes)
    with pytest.raises(ModelError, match="the model wrote no speaker, which has 32 codes"):
        stream.finish()
    # A part without a whole speaker before its speech cannot be continued.
    assert adapter.continue_voice(second, first, spoken[1:]) is second


def test_speakers_are_read_off_other_tokens() -> None:
    voice = MadeUpVoice(100, 50, 10, 40)
    ids = torch.tensor([3, *range(10, 42), 99, 100, 149, 49, 150])
    assert voice.frames(ids)[:2].tolist() == [[0, 49], [0, 0]] and voice.frames(ids).shape == (33, 2)
    assert voice.frames(ids[5:]).tolist() == [[0, 49]]  # a speaker of 28 codes is none
    before, speaker = voice.description(ids)
    assert before == ids[:34].tolist() and speaker is not None and speaker.tolist() == list(range(32))


def test_errors(folder: Any) -> None:
    call = CALLS[0]
    for wrong, message in (
        ({"gender": "woman"}, "gender='woman' is not allowed; it must be one of female, male"),
        ({"pitch": "hi"}, "pitch='hi' is not allowed"),
        ({"speed": 3}, "speed=3 is not allowed"),
        ({"gender": np.array([1, 2])}, "gender=<ndarray> is not allowed"),
        ({"style": np.array([1, 2])}, "style=<ndarray> is not allowed"),
        ({"style": "llasa"}, "gender='female' is not allowed; it is for the style 'spark' without a voice"),
        ({"voice": ReferenceCodes("", torch.tensor([1]), torch.tensor([1]))}, "without a voice"),
    ):
        with pytest.raises(ArgumentError, match=message):
            pipeline(folder, call, **wrong)
    for processor in (None, "words", 5):
        with pytest.raises(ArgumentError, match=f"processor={processor!r} is not allowed; it must be the tokenizer of"):
            made_up_style(folder.model.config, processor)
    ends = {name: folder.tokenizer.convert_tokens_to_ids(name) for name in LIMITS}
    words = type("Words", (type(folder.tokenizer),), {"convert_tokens_to_ids": lambda self, name: ends.get(name)})
    without = words(tokenizer_object=folder.tokenizer._tokenizer, unk_token="<unk>")
    with pytest.raises(ModelError, match="<.im_end.> as None, the model"):
        made_up_style(folder.model.config, without)
    one_book = type("Codec", (VoiceCodec,), {"codebooks": 1})()
    with pytest.raises(ModelError, match="the codec has 1 codebooks of 8192, the model's stream 33 slots of 8192"):
        pipeline(folder, call, codec=one_book)
