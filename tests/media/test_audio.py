"""Audio of any kind, of files and of Python, is read as float32 in -1..1, or refused by name."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from mmspec import limits
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.bulk.media import AudioClip, media_of
from mmspec.errors import ArgumentError
from mmspec.media.audio import read_audio
from mmspec.metrics.evaluation.media import check_readable, read_waveform
from mmspec.metrics.extractors.audio import Waveform
from mmspec.serving.errors import ApiError
from mmspec.serving.reference import read_reference
from mmspec.serving.settings import ServerSettings

RATE = 8000
STEREO = (0.5 * np.sin(np.arange(2000) * np.array([[0.05], [0.031]]))).astype(np.float32)
MONO = STEREO.mean(0)

# The format of a file, its sample format, and how far what is read may be from what was written.
FILES = [
    ("wav", "PCM_U8", 1e-2), ("wav", "PCM_16", 1e-4), ("wav", "PCM_24", 1e-6), ("wav", "PCM_32", 1e-6),
    ("wav", "FLOAT", 1e-7), ("wav", "DOUBLE", 1e-7), ("wav", "ULAW", 3e-2), ("wav", "ALAW", 3e-2),
    ("wav", "MS_ADPCM", 6e-2), ("flac", "PCM_S8", 1e-2), ("flac", "PCM_16", 1e-4), ("flac", "PCM_24", 1e-6),
    ("ogg", "VORBIS", 0.1), ("mp3", "MPEG_LAYER_III", 0.1),
]  # fmt: skip


def of_server(path: Path) -> Any:
    settings = ServerSettings(allow_reference_audio=True)
    found = read_reference(base64.b64encode(path.read_bytes()).decode(), None, settings)
    assert found is not None
    return found[0].mean(0)


def of_measure(path: Path) -> Any:
    assert (problem := check_readable(path)) is None, problem
    return read_waveform(path).wave


FILE_READERS: dict[str, Callable[[Path], Any]] = {
    "voice": lambda path: ReferenceAudio(*read_audio(path, limits.VOICE_SECONDS)).audio.mean(0),
    "server": of_server,
    "measure": of_measure,
}


def of_pipeline(audio: Any) -> Any:
    clip = media_of({"audio": audio, "sampling_rate": RATE}, 1)[0]
    assert isinstance(clip, AudioClip)
    return clip.wave.mean(0)


ARRAY_READERS: dict[str, Callable[[Any], Any]] = {
    "voice": lambda audio: ReferenceAudio(audio, RATE).mono(RATE).numpy(),
    "metric": lambda audio: Waveform(audio, RATE).wave,
    "output of a pipeline": of_pipeline,
}


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize(("suffix", "coding", "error"), FILES)
def test_files(suffix: str, coding: str, error: float, reader: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    soundfile.write(path, STEREO.T, RATE, subtype=coding)
    found = FILE_READERS[reader](path)
    assert abs(len(found) - len(MONO)) <= 1200  # MP3 has a delay
    if suffix != "mp3":
        np.testing.assert_allclose(found, MONO, atol=error)
    assert 0.3 < np.abs(found).max() < 1


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((0, 1)), "no samples"),
        (np.full((9, 1), np.inf), "not finite"),
        (np.full((9, 1), 20_000.0), "as large as 20000"),
        (np.zeros((9, 9)), "has 9 channels; at most 8"),
    ],
)
def test_files_that_are_no_audio(samples: Any, message: str, reader: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", samples, RATE, subtype="FLOAT")
    with pytest.raises((ArgumentError, ApiError, AssertionError), match=message):
        FILE_READERS[reader](tmp_path / "x.wav")


@pytest.mark.parametrize("reader", ARRAY_READERS)
@pytest.mark.parametrize(
    ("given", "error"),
    [
        (STEREO, 1e-7),
        (STEREO.astype(np.float64), 1e-7),
        (STEREO.astype(np.float16), 1e-3),
        (torch.from_numpy(STEREO), 1e-7),
        (torch.from_numpy(STEREO).bfloat16().requires_grad_(), 1e-2),
        (STEREO.T, 1e-7),
        (STEREO.T.tolist(), 1e-7),
        (torch.from_numpy(STEREO.T), 1e-7),
        ((STEREO * 2**15).astype(np.int16), 1e-4),
        ((STEREO * 2**15).astype(np.int16).T, 1e-4),
        ((STEREO * 2.0**31).astype(np.int32), 1e-6),
        ((STEREO * 2**7).astype(np.int8), 1e-2),
        ((STEREO * 2**7 + 128).astype(np.uint8), 1e-2),
        (torch.from_numpy((STEREO * 2**15).astype(np.int16)), 1e-4),
    ],
)
def test_arrays(given: Any, error: float, reader: str) -> None:
    np.testing.assert_allclose(ARRAY_READERS[reader](given), MONO, atol=error)


@pytest.mark.parametrize("reader", ARRAY_READERS)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((1, 2, 9), np.float32), r"has shape \[1, 2, 9\]; it must be \[channels, samples\]"),
        (np.zeros((9, 9), np.float32), r"has shape \[9, 9\]; it must be \[channels, samples\] with at most 8"),
        (np.zeros((1, 9), np.int64), "is of int64; it must be of real numbers"),
        (np.zeros((1, 9), np.uint16), "is of uint16"),
        (np.zeros((1, 9), np.complex64), "is of complex64"),
        (np.zeros((1, 9), bool), "is of bool"),
        (np.array([["a", "b"]]), "is of <U1"),
        ([[0.0, 0.1], [0.2]], "is not audio"),
    ],
)
def test_arrays_that_are_no_audio(given: Any, message: str, reader: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ARRAY_READERS[reader](given)


@pytest.mark.parametrize(
    "audio", [STEREO * 2**15, STEREO * np.nan, STEREO.astype(np.float64) * 1e300, STEREO[:, :0], MONO]
)
def test_a_voice_is_within_full_scale(audio: Any) -> None:
    with pytest.raises(ArgumentError, match="audio has .*it must be"):
        ReferenceAudio(audio, RATE)
