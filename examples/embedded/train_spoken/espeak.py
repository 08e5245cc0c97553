"""Speech synthesis by espeak-ng through its shared library, for training data."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmspec.audio.spoken.config import SAMPLING_RATE
from mmspec.errors import ArgumentError

_SYNCHRONOUS, _PHONEME_EVENTS, _UTF8 = 2, 1, 1
_RATE, _PITCH = 1, 3  # parameters of espeak-ng
_END, _PHONEME = 0, 7  # events
_PAUSES = ("_", "_:", "_!", "_|", "")


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("unique_identifier", ctypes.c_uint), ("text_position", ctypes.c_int),
        ("length", ctypes.c_int), ("audio_position", ctypes.c_int), ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p), ("string", ctypes.c_char * 8),
    ]  # fmt: skip


@dataclass(frozen=True)
class Phone:
    """A phone.

    Attributes:
        name: Its name in espeak-ng.
        at: Character of the text, from 1, at which its word starts.
        start: Start time in seconds.
    """

    name: str
    at: int
    start: float


@dataclass(frozen=True)
class Speech:
    """Synthesized speech.

    Attributes:
        audio: float32 [samples] at `SAMPLING_RATE`, in -1..1.
        phones: The phones in order.
    """

    audio: NDArray[np.float32]
    phones: list[Phone]


class _Engine:
    """The speech engine, of which a process can have only one."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libespeak-ng.so.1")
        except OSError as error:
            raise ArgumentError(f"training data needs espeak-ng (apt install espeak-ng): {error}") from None
        self._library.espeak_Synth.argtypes = [
            ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint,
            ctypes.c_void_p, ctypes.c_void_p,
        ]  # fmt: skip
        self.rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 200, None, _PHONEME_EVENTS)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))
        self._receive = kind(self._on_audio)  # kept alive: the library holds no reference
        self._library.espeak_SetSynthCallback(self._receive)
        self._parts: list[NDArray[np.int16]] = []
        self._phones: list[Phone] = []

    def _on_audio(self, samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            self._parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        i = 0
        while events[i].type != _END:
            event = events[i]
            if event.type == _PHONEME:
                name = bytes(event.string).split(b"\0")[0].decode(errors="replace")
                self._phones.append(Phone(name, event.text_position, event.sample / self.rate))
            i += 1
        return 0

    def speak(self, text: str, voice: str, speed: int, pitch: int) -> tuple[NDArray[np.int16], list[Phone]]:
        """Samples at `rate`, and phones."""
        self._parts, self._phones = [], []
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ArgumentError(f"espeak-ng has no voice {voice!r}")
        self._library.espeak_SetParameter(_RATE, speed, 0)
        self._library.espeak_SetParameter(_PITCH, pitch, 0)
        data = text.encode() + b"\0"
        self._library.espeak_Synth(data, len(data), 0, 1, 0, _UTF8, None, None)
        return np.concatenate(self._parts), self._phones


@cache
def _engine() -> _Engine:
    return _Engine()


def resample(audio: NDArray[np.float32], rate: int, new_rate: int) -> NDArray[np.float32]:
    """Resamples audio float32 [samples] by truncating its spectrum."""
    count = round(len(audio) * new_rate / rate)
    # Zero padding keeps the end from wrapping around to the start.
    padded = np.pad(audio, (0, rate // 20 + -(len(audio) + rate // 20) % rate % 441))
    spectrum = np.fft.rfft(padded)
    length = round(len(padded) * new_rate / rate)
    kept = np.zeros(length // 2 + 1, dtype=complex)
    n = min(len(spectrum), len(kept))
    kept[:n] = spectrum[:n]
    return (np.fft.irfft(kept, length) * (length / len(padded)))[:count].astype(np.float32)


def speak(text: str, voice: str, speed: int = 160, pitch: int = 50) -> Speech:
    """Synthesizes a text. A pause inside it is one phone `_`; there is none at its start.

    Args:
        text: The text.
        voice: Name of a voice in espeak-ng, such as "en-us+f3".
        speed: Words per minute.
        pitch: 0 to 99.
    """
    engine = _engine()
    samples, events = engine.speak(text, voice, speed, pitch)
    audio = resample((samples / 32768).astype(np.float32), engine.rate, SAMPLING_RATE)
    phones: list[Phone] = []
    for phone in events:
        silent = phone.name in _PAUSES
        if silent and (not phones or phones[-1].name == "_"):
            continue
        phones.append(Phone("_", phone.at, phone.start) if silent else phone)
    return Speech(audio, phones)
