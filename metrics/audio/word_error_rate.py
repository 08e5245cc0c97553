"""Word and character error rate: how much of what should be said a recogniser hears."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mmspec.errors import ArgumentError


def word_error_rate(heard: Sequence[str], wanted: Sequence[str]) -> float:
    """Edits over wanted words, of all texts together; above 1 when much is inserted.

    Texts are compared as they are, split at blanks: see `normalise` for what should not count.

    Raises:
        ArgumentError: For lists of different length, or when no word is wanted at all.
    """
    return _rate([text.split() for text in heard], [text.split() for text in wanted], "words")


def character_error_rate(heard: Sequence[str], wanted: Sequence[str]) -> float:
    """Edits over wanted characters, blanks included.

    Raises:
        ArgumentError: As `word_error_rate`.
    """
    return _rate(heard, wanted, "characters")


def normalise(text: str) -> str:
    """Lower case, without punctuation, one blank between words; apostrophes inside words stay."""
    return " ".join(re.findall(r"\w+(?:'\w+)*", text.lower()))


def edits(heard: Sequence[str], wanted: Sequence[str]) -> int:
    """Fewest insertions, deletions and substitutions that turn one sequence into the other (Levenshtein)."""
    row = np.arange(len(heard) + 1)
    for i, item in enumerate(wanted, 1):
        kept = row[:-1] + np.array([other != item for other in heard], dtype=np.int64)
        below = np.concatenate([[i], np.minimum(kept, row[1:] + 1)])
        # An insertion comes from the left neighbour of the same row: a running minimum once the slope is taken out.
        row = np.minimum.accumulate(below - np.arange(len(below))) + np.arange(len(below))
    return int(row[-1])


def _rate(heard: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]], unit: str) -> float:
    if len(heard) != len(wanted):
        raise ArgumentError(f"heard has {len(heard)} texts, wanted has {len(wanted)}; there must be one for each")
    total = sum(map(len, wanted))
    if total == 0:
        raise ArgumentError(f"wanted holds no {unit}; an error rate needs at least one")
    return sum(edits(a, b) for a, b in zip(heard, wanted, strict=True)) / total
