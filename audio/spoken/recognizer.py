"""A speech recognizer for the embedded voice: a small network for phones, and a Viterbi search for words."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from mmspec.audio.spoken.analysis import BANDS, FLOOR, log_bands
from mmspec.audio.spoken.checkpoint import load_module
from mmspec.audio.spoken.config import FRAMES_PER_TOKEN, SAMPLING_RATE, WEIGHTS
from mmspec.audio.spoken.script import PAUSE
from mmspec.audio.spoken.text import lexicon, read
from mmspec.errors import ArgumentError

_PEAK = 0.7  # amplitude that audio is normalized to
_WORD_COST = 4.0  # nats per word, against short words inside long ones


class SpokenRecognizer(nn.Module):
    """Recognizes words in audio.

    Args:
        channels: Width of the layers.
        depth: Number of layers; each sees two steps of 20 ms to each side.
    """

    prior: Tensor

    def __init__(self, channels: int = 160, depth: int = 4) -> None:
        super().__init__()
        self.config = {"channels": channels, "depth": depth}
        phones = len(lexicon()[1])
        self.register_buffer("prior", torch.zeros(phones))  # log frequencies of the phones
        self.enter = nn.Conv1d(FRAMES_PER_TOKEN * BANDS, channels, 1)
        self.layers = nn.ModuleList(nn.Conv1d(channels, channels, 5, padding=2) for _ in range(depth))
        self.leave = nn.Conv1d(channels, phones, 1)

    def forward(self, bands: Tensor) -> Tensor:
        """Logits of phones [B, T, phones] from bands [B, T, 2 * BANDS]."""
        x = self.enter((bands.mT - np.log(FLOOR) - 3.5) / 2)
        for layer in self.layers:
            x = x + layer(F.silu(x))
        return self.leave(F.silu(x)).mT

    @torch.inference_mode()
    def transcribe(self, audio: NDArray[np.float32], sampling_rate: int) -> str:
        """The words in audio float32 [samples]; homophones are replaced as in `merge_homophones`.

        Raises:
            ArgumentError: If the sampling rate is not that of the voice, or if there is more than one channel.
        """
        if sampling_rate != SAMPLING_RATE or audio.ndim != 1:
            raise ArgumentError(
                f"audio of shape {list(audio.shape)} at {sampling_rate} Hz cannot be transcribed; "
                f"it must be [samples] at {SAMPLING_RATE} Hz"
            )
        bands = token_bands(normalize_peak(audio))
        scores = self(torch.from_numpy(bands)[None])[0].log_softmax(-1) - self.prior
        return " ".join(_word_search().best_path(scores.numpy()))


def normalize_peak(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scales audio to a peak of `_PEAK`."""
    return (audio * (_PEAK / max(float(np.abs(audio).max(initial=0.0)), 1e-3))).astype(np.float32)


def token_bands(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """The bands of each 20 ms, float32 [T, 2 * BANDS]."""
    bands = log_bands(audio)
    return np.ascontiguousarray(bands[: len(bands) // FRAMES_PER_TOKEN * FRAMES_PER_TOKEN]).reshape(
        -1, FRAMES_PER_TOKEN * BANDS
    )


def merge_homophones(text: str) -> str:
    """The reference transcript of a text: its words, each replaced by the one that stands for all its homophones."""
    homophone = _word_search().homophone
    return " ".join(homophone[word] for part in read(text).sentences for word in part.words if word != PAUSE)


class WordSearch:
    """Viterbi search over words in a loop with optional pauses; a state for each phone of each word.

    Attributes:
        homophone: For each word, the word that stands for all words with its pronunciation.
    """

    def __init__(self) -> None:
        pronunciations, phones = lexicon()
        number = {phone: i for i, phone in enumerate(phones)}
        first_word: dict[str, str] = {}
        self.homophone = {word: first_word.setdefault(ways[0], word) for word, ways in pronunciations.items()}
        self.homophone["a"] = self.homophone["A"]  # the stressed article sounds like the letter
        word_of = {way: self.homophone[word] for word, ways in pronunciations.items() for way in dict.fromkeys(ways)}
        chains = [([number[p] for p in way.split()], word) for way, word in word_of.items()]
        chains.append(([number[PAUSE]], PAUSE))
        self._phone = np.concatenate([chain for chain, _ in chains])
        lengths = np.array([len(chain) for chain, _ in chains])
        self._last = lengths.cumsum() - 1
        self._first = self._last - lengths + 1
        self._words = [word for _, word in chains]
        self._cost = np.where(np.array(self._words) == PAUSE, 0.0, _WORD_COST).astype(np.float32)

    def best_path(self, scores: NDArray[np.float32]) -> list[str]:
        """The words on the most probable path.

        Args:
            scores: Log likelihoods of the phones, float32 [T, phones].
        """
        states = len(self._phone)
        score = np.full(states, -np.inf, dtype=np.float32)
        entered = np.zeros(states, dtype=np.int64)  # by state, index in `ends` of the word before the current one
        ends: list[tuple[int, int]] = [
            (-1, -1)
        ]  # best word that ends at a frame, and index in `ends` of the one before
        leaving = 0.0
        for frame in scores:
            moved = np.concatenate([score[:1], score[:-1]])
            moved[self._first] = leaving - self._cost
            moved_entered = np.concatenate([entered[:1], entered[:-1]])
            moved_entered[self._first] = len(ends) - 1
            stay = score >= moved
            score = np.where(stay, score, moved) + frame[self._phone]
            entered = np.where(stay, entered, moved_entered)
            word = int(score[self._last].argmax())
            leaving = float(score[self._last[word]])
            ends.append((word, int(entered[self._last[word]])))
        words, at = [], len(ends) - 1
        while at > 0:
            word, at = ends[at]
            words.append(self._words[word])
        return [word for word in reversed(words) if word != PAUSE]


@cache
def _word_search() -> WordSearch:
    return WordSearch()


@cache
def embedded_recognizer() -> SpokenRecognizer:
    """The recognizer that ships with the package."""
    return load_module(SpokenRecognizer, WEIGHTS / "recogniser")
