"""Extractors of audio, and resampling to the rate that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mmspec.media.audio import to_audio
from mmspec.metrics.extractors.extractor import NamedExtractor
from mmspec.metrics.features import Features


@dataclass(frozen=True)
class Waveform:
    """A recording with one channel.

    Attributes:
        wave: float64 [T] in -1..1; other arrays are converted by their type, and their channels mixed, see
            `mmspec.media.audio.to_audio`.
        rate: Samples per second.

    Raises:
        ArgumentError: For an array that is not audio.
    """

    wave: Features
    rate: int

    def __post_init__(self) -> None:
        if not isinstance(self.wave, np.ndarray) or self.wave.dtype != np.float64 or self.wave.ndim != 1:
            object.__setattr__(self, "wave", to_audio(self.wave, "wave").astype(np.float64).mean(0))

    @property
    def seconds(self) -> float:
        return len(self.wave) / self.rate

    def at(self, rate: int) -> Features:
        """The wave at another rate, without the frequencies that the lower of the two rates cannot represent."""
        return self.wave if rate == self.rate else resample(self.wave, self.rate, rate)


class AudioExtractor(NamedExtractor, Protocol):
    """Computes features of recordings."""

    def __call__(self, audio: Sequence[Waveform]) -> Features:
        """Features float64 [B, D] of recordings of any lengths and rates; they do not depend on the batch."""
        ...


class SpeechRecognizer(AudioExtractor, Protocol):
    """An extractor that transcribes speech too."""

    def transcribe(self, audio: Sequence[Waveform]) -> list[str]:
        """The words of each recording."""
        ...

    def expected(self, text: str) -> str:
        """The transcript of a perfect recording of a text."""
        ...


def resample(wave: Features, rate: int, to: int) -> Features:
    """Resamples a wave [T] through its spectrum, with the ends reflected outwards.

    Args:
        wave: float64 [T].
        rate: Its samples per second.
        to: The new samples per second.

    Returns:
        float64 [round(T * to / rate)].
    """
    margin = min(len(wave) - 1, rate // 10)
    padded = np.pad(wave, margin, mode="reflect")
    count = round(len(padded) * to / rate)
    spectrum = np.fft.rfft(padded)[: count // 2 + 1]
    found = np.fft.irfft(spectrum, count) * (count / len(padded))
    first, length = round(margin * to / rate), round(len(wave) * to / rate)
    return np.asarray(found[first : first + length])
