"""Recordings as speech packages take them: paths, addresses, base64, and arrays with their sampling rate."""

from __future__ import annotations

import base64
import binascii
import tempfile
import urllib.request
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mmspec.arguments import shown
from mmspec.audio.reference_audio import ReferenceAudio
from mmspec.errors import ArgumentError
from mmspec.limits import VOICE_SECONDS
from mmspec.media.audio import read_audio

LONGEST_PATH = 256  # a longer text is base64, unless there is such a file
MOST_BYTES = 2**28


def read_recording(audio: Any) -> ReferenceAudio:
    """A recording without its transcript.

    Args:
        audio: A path, an address (http, https), base64, a `data:` URL with base64, or a pair of an array [samples] or
            [samples, channels] and its sampling rate.

    Raises:
        ArgumentError: If it is something else, or cannot be read.
    """
    if isinstance(audio, tuple) and len(audio) == 2 and isinstance(audio[0], np.ndarray):
        samples = np.atleast_2d(audio[0].T)
        return ReferenceAudio(samples, audio[1])
    if isinstance(audio, PathLike):
        return ReferenceAudio(*read_audio(Path(audio), VOICE_SECONDS))
    if not isinstance(audio, str):
        raise ArgumentError(
            f"ref_audio={shown(audio)} is not allowed; it must be a path, an address, base64, or (array, sampling rate)"
        )
    if audio.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(audio, timeout=60) as response:
                return _read(response.read(MOST_BYTES))
        except OSError as error:
            raise ArgumentError(f"ref_audio={shown(audio)} cannot be fetched: {error}") from None
    if audio.startswith("data:audio") or (len(audio) > LONGEST_PATH and not _exists(audio)):
        try:
            return _read(base64.b64decode(audio.rpartition(",")[2], validate=True))
        except binascii.Error:
            raise ArgumentError(f"ref_audio={shown(audio)} is not base64") from None
    return ReferenceAudio(*read_audio(Path(audio), VOICE_SECONDS))


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long
        return False


def _read(data: bytes) -> ReferenceAudio:
    with tempfile.NamedTemporaryFile(prefix="mmspec-", suffix=".audio") as file:
        file.write(data)
        file.flush()
        return ReferenceAudio(*read_audio(Path(file.name), VOICE_SECONDS))
