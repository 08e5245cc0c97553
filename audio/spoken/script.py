"""What is to be said, phone by phone: the condition of the transformer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAUSE = "_"  # a word and a phone: at both ends of a sentence, and for each comma
_AROUND = 2  # phones seen to each side


@dataclass(frozen=True)
class Script:
    """One sentence.

    Attributes:
        voice: Its number.
        asks: Whether it is a question.
        words: Of each phone.
        phones: Of each phone.
        starts: Whether it is the first of its word.
    """

    voice: int
    asks: bool
    words: Sequence[str]
    starts: Sequence[bool]
    phones: Sequence[str]

    def __len__(self) -> int:
        return len(self.phones)


class Alphabet:
    """Numbers for words and phones; 0 is what lies beyond the ends of a sentence.

    Args:
        words: All that a script may hold.
        phones: All that a script may hold.
    """

    def __init__(self, words: Sequence[str], phones: Sequence[str]) -> None:
        self._word = {word: i for i, word in enumerate(words, 1)}
        self._phone = {phone: i for i, phone in enumerate(phones, 1)}
        beyond = len(phones) + 1
        self.sizes = (*[beyond] * (2 * _AROUND + 1), len(words) + 1, 8, 8, 8, 8, 2, 2)

    def features(self, script: Script) -> NDArray[np.int64]:
        """What the transformer is told at each phone, int64 [J, 12]; column c is below `sizes[c]`.

        The phones around it, its word, the phones of its word before and after it, the words of its clause before and
        after it, whether it is of a question, and the voice.
        """
        count = len(script)
        phone = np.pad([self._phone[p] for p in script.phones], _AROUND)
        around = [phone[i : i + count] for i in range(2 * _AROUND + 1)]
        word_number = np.cumsum(script.starts)
        clause_number = np.cumsum([w == PAUSE for w in script.words])
        inside = [_place(word_number)[0], _place(word_number)[1]]
        before, behind = _place(clause_number, word_number)
        constants = [np.full(count, script.asks), np.full(count, script.voice)]
        word = np.array([self._word[w] for w in script.words])
        return np.stack([*around, word, *inside, before, behind, *constants], axis=1).astype(np.int64)


def _place(group: NDArray[np.int64], unit: NDArray[np.int64] | None = None) -> tuple[NDArray[np.int64], ...]:
    """How many units of its group lie before and after each entry, at most 7; entries are units unless told."""
    unit = np.arange(len(group)) if unit is None else unit
    first = np.searchsorted(group, group)
    last = np.searchsorted(group, group, side="right") - 1
    return (unit - unit[first]).clip(max=7), (unit[last] - unit).clip(max=7)
