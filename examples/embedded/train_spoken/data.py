"""Training data: sentences synthesized by espeak-ng, aligned with their phones."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from train_spoken.config import LEAD, PITCHES, SEED_TRAIN, SPEEDS, TAIL
from train_spoken.espeak import Phone, speak
from train_spoken.sentences import sentences

from mmspec.audio.spoken.config import HOP, SAMPLING_RATE, VOICES
from mmspec.audio.spoken.script import PAUSE

_SPELLING = {"A": "eigh"}  # espeak-ng reads the letter A as the article


@dataclass(frozen=True)
class Utterance:
    """A synthesized sentence.

    Attributes:
        text: The sentence.
        voice: Index of the voice.
        is_question: Whether the sentence ends in a question mark.
        words: Word of each phone. A pause has the word and the phone `PAUSE`; there is one at both ends.
        word_starts: Whether each phone is the first one of its word.
        phones: The phones in order.
        phone_at: Index of the phone at each token, int64 [T]; every phone has at least one token.
        audio: float32 [T * HOP].
    """

    text: str
    voice: int
    is_question: bool
    words: list[str]
    word_starts: list[bool]
    phones: list[str]
    phone_at: NDArray[np.int64]
    audio: NDArray[np.float32]


def synthesize(text: str, voice: int, rng: random.Random) -> Utterance | None:
    """Synthesizes a sentence of words in the vocabulary; None if espeak-ng merges two of its words."""
    spelled, word_at = "", {}  # the text for espeak-ng, and the word that starts at a character of it
    for match in re.finditer(r"[\w']+|[,?]", text):
        word = match.group()
        if word not in ",?":
            spelled += " " if spelled else ""
            word_at[len(spelled) + 1] = word
        spelled += _SPELLING.get(word, word)
    name = list(VOICES.values())[voice][0]
    speech = speak(spelled, name, rng.choice(SPEEDS), rng.choice(PITCHES))
    words, phones, word_starts, times = [PAUSE], [PAUSE], [True], [0.0]
    seen: set[int] = set()
    for phone in split_article(speech.phones, word_at):
        silent = phone.name == PAUSE
        if not silent and phone.at not in word_at:
            return None
        words.append(PAUSE if silent else word_at[phone.at])
        word_starts.append(silent or phone.at not in seen)
        phones.append(phone.name)
        times.append(phone.start + LEAD)
        if not silent:
            seen.add(phone.at)
    if seen != set(word_at):
        return None
    if phones[-1] != PAUSE:
        words.append(PAUSE)
        phones.append(PAUSE)
        word_starts.append(True)
        times.append(LEAD + len(speech.audio) / SAMPLING_RATE)
    lead, tail = (np.zeros(round(t * SAMPLING_RATE), dtype=np.float32) for t in (LEAD, TAIL))
    audio = np.concatenate([lead, speech.audio, tail])
    tokens = -(-len(audio) // HOP)
    audio = np.pad(audio, (0, tokens * HOP - len(audio)))
    first = np.round(np.array(times) * SAMPLING_RATE / HOP).astype(np.int64)
    for j in range(1, len(first)):
        first[j] = max(first[j], first[j - 1] + 1)
    for j in range(len(first) - 1, 0, -1):
        first[j] = min(first[j], (tokens if j == len(first) - 1 else first[j + 1]) - 1)
    phone_at = np.searchsorted(first, np.arange(tokens), side="right") - 1
    return Utterance(text, voice, text.endswith("?"), words, word_starts, phones, phone_at, audio)


def split_article(phones: list[Phone], word_at: dict[int, str]) -> list[Phone]:
    """Assigns the phones of "the" to it; espeak-ng counts them to the word before in "in the", "on the", "for the"."""
    starts, present = list(word_at), {phone.at for phone in phones}
    merged = {a: b for a, b in zip(starts, starts[1:], strict=False) if word_at[b] == "the" and b not in present}
    result: list[Phone] = []
    for phone in phones:
        inside = result and result[-1].at == merged.get(phone.at)
        split = phone.at in merged and (phone.name == "D" or inside)
        result.append(replace(phone, at=merged[phone.at]) if split else phone)
    return result


def utterances(n: int, seed: int = SEED_TRAIN, held_out: bool = False) -> Iterator[Utterance]:
    """Synthesizes `n` sentences by each voice in turn, and skips those that `synthesize` cannot align."""
    rng = random.Random(seed)
    for i, text in enumerate(sentences(n, seed, held_out)):
        utterance = synthesize(text, i % len(VOICES), rng)
        if utterance is not None:
            yield utterance
