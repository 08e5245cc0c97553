"""Scripts: the phones of a sentence, which the transformer is conditioned on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAUSE = "_"  # a word and a phone, at both ends of a sentence and for each comma
_AROUND = 2  # neighboring phones to each side


@dataclass(frozen=True)
class Script:
    """The phones of a sentence.

    Attributes:
        voice: Index of the voice.
        is_question: Whether the sentence is a question.
        words: Word of each phone.
        word_starts: Whether each phone is the first one of its word.
        phones: The phones in order.
    """

    voice: int
    is_question: bool
    words: Sequence[str]
    word_starts: Sequence[bool]
    phones: Sequence[str]

    def __len__(self) -> int:
        return len(self.phones)


class Alphabet:
    """Numbers for words and phones; 0 stands for positions beyond the ends of a sentence.

    Args:
        words: All words of scripts.
        phones: All phones of scripts.

    Attributes:
        sizes: Number of values of each column of `features`.
    """

    def __init__(self, words: Sequence[str], phones: Sequence[str]) -> None:
        self._word = {word: i for i, word in enumerate(words, 1)}
        self._phone = {phone: i for i, phone in enumerate(phones, 1)}
        beyond = len(phones) + 1
        self.sizes = (*[beyond] * (2 * _AROUND + 1), len(words) + 1, 8, 8, 8, 8, 2, 2)

    def features(self, script: Script) -> NDArray[np.int64]:
        """Features of each phone, int64 [J, 12]; column c is below `sizes[c]`.

        The columns are the phone with its two neighbors on each side (5), its word, the number of phones of the word
        before and after it, the number of words of its clause before and after it, whether the sentence is a question,
        and the voice.
        """
        count = len(script)
        phone = np.pad([self._phone[p] for p in script.phones], _AROUND)
        around = [phone[i : i + count] for i in range(2 * _AROUND + 1)]
        word_number = np.cumsum(script.word_starts)
        clause_number = np.cumsum([w == PAUSE for w in script.words])
        phones_before, phones_after = _count_around(word_number)
        words_before, words_after = _count_around(clause_number, word_number)
        constants = [np.full(count, script.is_question), np.full(count, script.voice)]
        word = np.array([self._word[w] for w in script.words])
        counts = [phones_before, phones_after, words_before, words_after]
        return np.stack([*around, word, *counts, *constants], axis=1).astype(np.int64)


def _count_around(group: NDArray[np.int64], unit: NDArray[np.int64] | None = None) -> tuple[NDArray[np.int64], ...]:
    """Number of units before and after each entry in its group, at most 7; every entry is a unit if `unit` is None."""
    unit = np.arange(len(group)) if unit is None else unit
    first = np.searchsorted(group, group)
    last = np.searchsorted(group, group, side="right") - 1
    return (unit - unit[first]).clip(max=7), (unit[last] - unit).clip(max=7)
