"""What a call says about its audio, servers, bulk runs and evaluations say too, and no file without samples is made."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import tiny_speech
from served import served
from torch import Tensor

import mmspec
import mmspec.bulk.generator
from mmspec.audio.outputs import AudioOutput
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.bulk.calls import generate_batch
from mmspec.bulk.requests import SampleSettings, requests_of
from mmspec.errors import ArgumentError
from mmspec.serving.engines import new_engine
from mmspec.serving.models import ServedModel

TEXT = "one two three"
CUT = "truncated: part 1 of 1 ('one two three') reached its limit of 8 tokens before its end"
SILENT = "no sound: part 1 of 1 ('one two three') ended before its first frame"


def pipeline(silent: bool = False) -> Any:
    model = tiny_speech.csm(codes=8)
    pipe: SpeechPipeline = mmspec.load(model, processor=tiny_speech.tokenizer(), config={"frames": 2})
    if silent:
        books = pipe.adapter.codec.codebooks

        def codes(tokens: Tensor) -> Tensor:
            return tokens.new_zeros(books, 0)

        pipe.adapter.codes = codes  # type: ignore[method-assign]
    return pipe


def notes_of(silent: bool) -> list[str]:
    return [SILENT, CUT] if silent else [CUT]


@pytest.mark.parametrize("silent", [False, True])
def test_servers_say_what_calls_say(silent: bool) -> None:
    pipe = pipeline(silent)
    assert pipe(TEXT, seed=0).notes == notes_of(silent)
    engine = new_engine(pipe, "scd:window=2", 4, 8)
    body: dict[str, Any] = {"input": TEXT, "seed": 0, "model": "csm"}
    with served([ServedModel("csm", pipe, "scd:window=2", engine)]) as server:
        for kind in ("wav", "flac", "opus", "mp3", "pcm"):
            status, headers, data = server.request("/v1/audio/speech", {**body, "response_format": kind})
            assert status == 200, data
            found = {name.lower(): value for name, value in headers.items()}
            assert found["x-notes"].split("; ") == notes_of(silent)
            if kind != "pcm":
                soundfile.read(io.BytesIO(data))
        _, _, data = server.request("/v1/audio/speech", {**body, "response_format": "flac", "stream_format": "sse"})
    events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
    assert events[-1]["type"] == "speech.audio.done" and events[-1]["notes"] == notes_of(silent)


@pytest.mark.parametrize("silent", [False, True])
def test_streams_and_bulk_runs_say_what_calls_say(silent: bool) -> None:
    pipe = pipeline(silent)
    stream = pipe.stream(TEXT, seed=0)
    assert sum(chunk.shape[-1] for chunk in stream) == pipe(TEXT, seed=0).audio.shape[-1]
    assert stream.notes == notes_of(silent) and stream.truncated
    (sample,) = generate_batch(pipe, requests_of([{"prompt": TEXT}], SampleSettings(), place="x", seed=0))
    assert sample.notes == notes_of(silent)


@pytest.mark.parametrize("silent", [False, True])
def test_generators_say_what_calls_say(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pipeline(silent)
    monkeypatch.setattr(mmspec.bulk.generator, "load", lambda **arguments: pipe)
    mmspec.bulk.generator._load.cache_clear()
    try:
        found = mmspec.Generator("any")({"prompt": [TEXT]})
    finally:
        mmspec.bulk.generator._load.cache_clear()
    assert found["notes"].tolist() == [notes_of(silent)] and found["error"].tolist() == [None]


def test_audio_without_samples_is_saved_as_wav_only(tmp_path: Path) -> None:
    out = pipeline(silent=True)(TEXT, seed=0)
    out.save(tmp_path / "a.wav")
    assert not len(soundfile.read(tmp_path / "a.wav")[0])
    for suffix in (".flac", ".ogg", ".mp3", ".opus"):
        with pytest.raises(ArgumentError, match="audio has no samples"):
            AudioOutput(np.zeros((1, 0), np.float32), 16000, [], 0, [], False, out.stats).save(tmp_path / f"a{suffix}")
        assert not (tmp_path / f"a{suffix}").exists()
