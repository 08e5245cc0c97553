"""Training data: sentences read by espeak-ng, with the phone that is heard at every token."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mmspec.audio.spoken.config import HOP, LEAD, PITCHES, SAMPLING_RATE, SEED_TRAIN, SPEEDS, TAIL, VOICES
from mmspec.audio.spoken.espeak import Phone, say
from mmspec.audio.spoken.script import PAUSE
from mmspec.audio.spoken.sentences import sentences

_HEARD_AS = {"A": "eigh"}  # espeak would read the letter as the article


@dataclass(frozen=True)
class Utterance:
    """A sentence as it was read.

    Attributes:
        voice: Its number.
        asks: Whether it ends in a question mark.
        words: Of each phone, in order; a pause is the word and the phone `PAUSE`, also at both ends.
        phones: As for `words`.
        starts: Whether it is the first of its word.
        phone_at: int64 [T], which phone is heard at each token; every phone at one or more.
        sound: float32 [T * HOP].
    """

    text: str
    voice: int
    asks: bool
    words: list[str]
    starts: list[bool]
    phones: list[str]
    phone_at: NDArray[np.int64]
    sound: NDArray[np.float32]


def read_aloud(text: str, voice: int, rng: random.Random) -> Utterance | None:
    """Has espeak read a sentence of learnt words; None where it runs two words into one."""
    said, where = "", {}
    for match in re.finditer(r"[\w']+|[,?]", text):
        word = match.group()
        if word not in ",?":
            said += " " if said else ""
            where[len(said) + 1] = word
        said += _HEARD_AS.get(word, word)
    name = list(VOICES.values())[voice][0]
    spoken = say(said, name, rng.choice(SPEEDS), rng.choice(PITCHES))
    words, phones, starts, begins = [PAUSE], [PAUSE], [True], [0.0]
    met: set[int] = set()
    for phone in separate(spoken.phones, where):
        silent = phone.name == PAUSE
        if not silent and phone.at not in where:
            return None
        words.append(PAUSE if silent else where[phone.at])
        starts.append(silent or phone.at not in met)
        phones.append(phone.name)
        begins.append(phone.start + LEAD)
        if not silent:
            met.add(phone.at)
    if met != set(where):
        return None
    if phones[-1] != PAUSE:
        words.append(PAUSE)
        phones.append(PAUSE)
        starts.append(True)
        begins.append(LEAD + len(spoken.sound) / SAMPLING_RATE)
    lead, tail = (np.zeros(round(t * SAMPLING_RATE), dtype=np.float32) for t in (LEAD, TAIL))
    sound = np.concatenate([lead, spoken.sound, tail])
    tokens = -(-len(sound) // HOP)
    sound = np.pad(sound, (0, tokens * HOP - len(sound)))
    first = np.round(np.array(begins) * SAMPLING_RATE / HOP).astype(np.int64)
    for j in range(1, len(first)):
        first[j] = max(first[j], first[j - 1] + 1)
    for j in range(len(first) - 1, 0, -1):
        first[j] = min(first[j], (tokens if j == len(first) - 1 else first[j + 1]) - 1)
    phone_at = np.searchsorted(first, np.arange(tokens), side="right") - 1
    return Utterance(text, voice, text.endswith("?"), words, starts, phones, phone_at, sound)


def separate(phones: list[Phone], where: dict[int, str]) -> list[Phone]:
    """Gives "the" its own phones back, which espeak counts to the word before in "in the", "on the" and "for the"."""
    places, heard = list(where), {phone.at for phone in phones}
    hidden = {a: b for a, b in zip(places, places[1:], strict=False) if where[b] == "the" and b not in heard}
    found: list[Phone] = []
    for phone in phones:
        inside = found and found[-1].at == hidden.get(phone.at)
        split = phone.at in hidden and (phone.name == "D" or inside)
        found.append(replace(phone, at=hidden[phone.at]) if split else phone)
    return found


def utterances(n: int, seed: int = SEED_TRAIN, held_out: bool = False) -> Iterator[Utterance]:
    """About `n` sentences, read by each voice in turn."""
    rng = random.Random(seed)
    for i, text in enumerate(sentences(n, seed, held_out)):
        found = read_aloud(text, i % len(VOICES), rng)
        if found is not None:
            yield found
