"""What every extractor of sounds is, and how a recording comes to the rate that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mmspec.metrics.extractors.extractor import Named
from mmspec.metrics.features import Features


@dataclass(frozen=True)
class Sound:
    """A recording: `wave` float64 [T] in -1..1, one channel, at `rate` samples per second."""

    wave: Features
    rate: int

    @property
    def seconds(self) -> float:
        return len(self.wave) / self.rate

    def at(self, rate: int) -> Features:
        """The wave at another rate, without what the lower of the two cannot hold."""
        return self.wave if rate == self.rate else resample(self.wave, self.rate, rate)


class AudioExtractor(Named, Protocol):
    """Makes features of recordings."""

    def __call__(self, sounds: Sequence[Sound]) -> Features:
        """Features float64 [B, D] of recordings of any lengths and rates; a recording's do not depend on its batch."""
        ...


class SpeechRecognizer(AudioExtractor, Protocol):
    """An extractor that hears words too."""

    def transcribe(self, sounds: Sequence[Sound]) -> list[str]:
        """The words of each recording."""
        ...

    def wanted(self, text: str) -> str:
        """A text as `transcribe` would write it."""
        ...


def resample(wave: Features, rate: int, to: int) -> Features:
    """A wave [T] at `rate` as one [round(T * to / rate)] at `to`, by its spectrum; the ends are reflected outwards."""
    margin = min(len(wave) - 1, rate // 10)
    padded = np.pad(wave, margin, mode="reflect")
    count = round(len(padded) * to / rate)
    spectrum = np.fft.rfft(padded)[: count // 2 + 1]
    found = np.fft.irfft(spectrum, count) * (count / len(padded))
    first, length = round(margin * to / rate), round(len(wave) * to / rate)
    return np.asarray(found[first : first + length])
