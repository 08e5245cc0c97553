"""Hears the words of the spoken voice: phones by a small network, words by the likeliest path through the lexicon."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.audio.spoken.analysis import BANDS, FLOOR, log_bands
from mmspec.audio.spoken.checkpoint import load
from mmspec.audio.spoken.config import FRAMES_PER_TOKEN, SAMPLING_RATE, WEIGHTS
from mmspec.audio.spoken.script import PAUSE
from mmspec.audio.spoken.text import lexicon, read
from mmspec.errors import ArgumentError

_LOUDEST = 0.7  # peak that sound is brought to
_WORD_COST = 4.0  # nats per word, which keeps short words out of long ones


class SpokenRecogniser(nn.Module):
    """Sound to words.

    Args:
        channels: Width of the layers.
        depth: Their number; each sees two steps of 20 ms to each side.
    """

    prior: Tensor

    def __init__(self, channels: int = 160, depth: int = 4) -> None:
        super().__init__()
        self.config = {"channels": channels, "depth": depth}
        phones = len(lexicon()[1])
        self.register_buffer("prior", torch.zeros(phones))  # logarithms of how frequent phones are
        self.enter = nn.Conv1d(FRAMES_PER_TOKEN * BANDS, channels, 1)
        self.layers = nn.ModuleList(nn.Conv1d(channels, channels, 5, padding=2) for _ in range(depth))
        self.leave = nn.Conv1d(channels, phones, 1)

    def forward(self, bands: Tensor) -> Tensor:
        """Bands [B, T, 2 * BANDS] to logits of phones [B, T, phones]."""
        x = self.enter((bands.mT - np.log(FLOOR) - 3.5) / 2)
        for layer in self.layers:
            x = x + layer(F.silu(x))
        return self.leave(F.silu(x)).mT

    @torch.inference_mode()
    def transcribe(self, sound: NDArray[np.float32], sampling_rate: int) -> str:
        """The words in a sound float32 [samples]; of words that sound alike, always the same one.

        Raises:
            ArgumentError: For another sampling rate than that of the voice, or more than one channel.
        """
        if sampling_rate != SAMPLING_RATE or sound.ndim != 1:
            raise ArgumentError(
                f"sound of shape {list(sound.shape)} at {sampling_rate} Hz cannot be heard; "
                f"it must be [samples] at {SAMPLING_RATE} Hz"
            )
        bands = token_bands(level(sound))
        scores = self(torch.from_numpy(bands)[None])[0].log_softmax(-1) - self.prior
        return " ".join(_paths().best(scores.numpy()))


def level(sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same with its peak at `_LOUDEST`."""
    return (sound * (_LOUDEST / max(float(np.abs(sound).max(initial=0.0)), 1e-3))).astype(np.float32)


def token_bands(sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """The bands of each 20 ms, float32 [T, 2 * BANDS]."""
    bands = log_bands(sound)
    return np.ascontiguousarray(bands[: len(bands) // FRAMES_PER_TOKEN * FRAMES_PER_TOKEN]).reshape(
        -1, FRAMES_PER_TOKEN * BANDS
    )


def sounds_alike(text: str) -> str:
    """What `transcribe` should give for a text: its words, each as the one that stands for all that sound alike."""
    alike = _paths().alike
    return " ".join(alike[word] for part in read(text).sentences for word in part.words if word != PAUSE)


class Paths:
    """All words in a loop, with a pause between them or none: a state per phone, where one can stay or go on."""

    def __init__(self) -> None:
        said, phones = lexicon()
        number = {phone: i for i, phone in enumerate(phones)}
        stands: dict[str, str] = {}
        self.alike = {word: stands.setdefault(ways[0], word) for word, ways in said.items()}
        self.alike["a"] = self.alike["A"]  # the article is said like the letter where it is stressed
        spellings = {way: self.alike[word] for word, ways in said.items() for way in dict.fromkeys(ways)}
        chains = [([number[p] for p in way.split()], word) for way, word in spellings.items()]
        chains.append(([number[PAUSE]], PAUSE))
        self._phone = np.concatenate([chain for chain, _ in chains])
        lengths = np.array([len(chain) for chain, _ in chains])
        self._last = lengths.cumsum() - 1
        self._first = self._last - lengths + 1
        self._words = [word for _, word in chains]
        self._cost = np.where(np.array(self._words) == PAUSE, 0.0, _WORD_COST).astype(np.float32)

    def best(self, scores: NDArray[np.float32]) -> list[str]:
        """The words on the likeliest path; `scores` float32 [T, phones] are logarithms."""
        states = len(self._phone)
        here = np.full(states, -np.inf, dtype=np.float32)
        since = np.zeros(states, dtype=np.int64)  # which of `ends` came before the word of a state
        ends: list[tuple[int, int]] = [(-1, -1)]  # the word that ended, and which of `ends` came before it
        leaving = 0.0
        for frame in scores:
            moved = np.concatenate([here[:1], here[:-1]])
            moved[self._first] = leaving - self._cost
            came = np.concatenate([since[:1], since[:-1]])
            came[self._first] = len(ends) - 1
            stay = here >= moved
            here = np.where(stay, here, moved) + frame[self._phone]
            since = np.where(stay, since, came)
            word = int(here[self._last].argmax())
            leaving = float(here[self._last[word]])
            ends.append((word, int(since[self._last[word]])))
        found, at = [], len(ends) - 1
        while at > 0:
            word, at = ends[at]
            found.append(self._words[word])
        return [word for word in reversed(found) if word != PAUSE]


@cache
def _paths() -> Paths:
    return Paths()


@cache
def embedded_recogniser() -> SpokenRecogniser:
    """The one that ships with the package."""
    return load(SpokenRecogniser, WEIGHTS / "recogniser")
