"""Speech models of other families in the server: those that follow a recording, and those of several stages."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import golden_qwen3_tts
import numpy as np
import pytest
import soundfile
import tiny_codecs
import tiny_latents
import tiny_music
import tiny_speech
import torch
from numpy.typing import NDArray
from served import served
from torch import Tensor

import mmspec
from mmspec.serving.engines import new_engine
from mmspec.serving.models import ServedModel
from mmspec.serving.settings import ServerSettings

# diffusers hands tensors to NumPy in its solver.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SPEECH = "/v1/audio/speech"


def wave(samples: int, rate: int) -> NDArray[np.float32]:
    return (np.sin(np.arange(samples) * 2 * np.pi * 50 / rate)[None] / 2).astype(np.float32)


def csm(_: Path) -> Any:
    tokens = tiny_speech.tokenizer()
    return mmspec.load(tiny_speech.csm(codes=8), processor=tokens, config={"frames": 8})


def dia(_: Path) -> Any:
    model = tiny_music.dia(2)
    processor = SimpleNamespace(tokenizer=tiny_music.tokenizer(), audio_tokenizer=tiny_codecs.dac())
    model.config.decoder_config.max_position_embeddings = 1 + 26 + 3
    return mmspec.load(model, processor=processor)


def qwen3_tts(folder: Path) -> Any:
    return mmspec.load(str(golden_qwen3_tts.copy(folder / "base", "base")), config={"frames": 8})


class Words:
    """A processor of Bark: an id for each word."""

    def __call__(self, text: str) -> dict[str, Tensor]:
        ids = torch.tensor([[len(word) for word in text.split()][:6]])
        ids = torch.nn.functional.pad(ids, (0, 6 - ids.shape[1]))
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def bark(_: Path) -> Any:
    return mmspec.load(tiny_speech.bark(), processor=Words())


def pocket(_: Path) -> Any:
    model = tiny_latents.tiny("pocket")
    model.generation_config.eos_threshold = 0.02
    return mmspec.load(model, processor=tiny_latents.pocket_processor())


def samples_of(data: bytes) -> NDArray[np.float64]:
    return np.frombuffer(data, "<i2") / 32768


def compare(data: bytes, own: Any) -> None:
    """Compares 16-bit samples with those of a pipeline."""
    found, wanted = samples_of(data), np.clip(own.audio[0], -1, 1)
    assert len(found) == len(wanted) > 0 and abs(found - wanted).max() < 1e-3


@pytest.mark.parametrize(
    ("make", "samples", "transcript", "text"),
    [
        pytest.param(csm, 40, "six", "two three", id="csm"),
        pytest.param(dia, 45, "happy", "slow quiet piano", id="dia"),
        pytest.param(qwen3_tts, 9600, None, "Hi", id="qwen3-tts"),
    ],
)
def test_a_voice_follows_a_recording(
    make: Callable[[Path], Any], samples: int, transcript: str | None, text: str, tmp_path: Path
) -> None:
    pipe, file = make(tmp_path), io.BytesIO()
    rate = pipe.sampling_rate
    audio = wave(samples, rate)
    soundfile.write(file, audio[0], rate, "FLOAT", format="WAV")
    body = {"input": text, "seed": 3, "response_format": "pcm", "ref_audio": base64.b64encode(file.getvalue()).decode()}
    body |= {} if transcript is None else {"ref_text": transcript}
    own = pipe.with_reference_audio(audio, rate, transcript)(text, seed=3, recipe="scd:window=4")
    model = ServedModel("voice", pipe, "scd:window=4", new_engine(pipe, "scd:window=4", 4, 8))
    with served([model], ServerSettings(allow_reference_audio=True)) as running:
        for stream in (False, True):
            status, _, data = running.request(SPEECH, body | {"stream": stream})
            assert status == 200, data
            compare(data, own)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(csm, "two. three. " * 12, id="csm"),
        pytest.param(bark, "one two. " * 30, id="bark"),
        pytest.param(pocket, "one two", id="pocket"),
    ],
)
def test_samples_are_those_of_the_pipeline(make: Callable[[Path], Any], text: str, tmp_path: Path) -> None:
    pipe = make(tmp_path)
    recipe = str(pipe.config["recipe"])
    model = ServedModel("voice", pipe, recipe, new_engine(pipe, recipe, 4, 8))
    own = pipe(text, seed=5, recipe=recipe)
    with served([model]) as running:
        for stream in (False, True):
            body = {"input": text, "seed": 5, "response_format": "pcm", "stream": stream}
            status, headers, data = running.request(SPEECH, body)
            assert status == 200, data
            compare(data, own)
        assert stream or int(headers["x-target-calls"]) > 0


def test_a_text_that_is_answered_is_read_once_and_in_a_thread_of_its_own(tmp_path: Path) -> None:
    """Other requests do not wait for the answer."""
    pipe, beside = csm(tmp_path), list[bool]()
    own = pipe.adapter.read

    def read(text: str, voice: str | None) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            beside.append(True)
        else:
            beside.append(False)
        return own(text, voice)

    pipe.adapter.read, pipe.adapter.answers = read, True
    model = ServedModel("voice", pipe, "scd:window=4", new_engine(pipe, "scd:window=4", 4, 8))
    with served([model]) as running:
        status, _, data = running.request(SPEECH, {"input": "two", "seed": 3, "response_format": "pcm"})
    assert status == 200 and beside == [True], data
