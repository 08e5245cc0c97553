"""Text preparation that speech models share: splitting at sentences, clauses, words, letters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from itertools import accumulate

# Speech per letter relative to a Latin letter, roughly: a Chinese character takes as long as four.
_WEIGHTS = ((0x3040, 0x30FF, 2), (0x3400, 0x4DBF, 4), (0x4E00, 0x9FFF, 4), (0xAC00, 0xD7A3, 3), (0xF900, 0xFAFF, 4),
            (0x20000, 0x3FFFF, 4))  # fmt: skip
_CLOSING = "\"'”’»)\\]"
_SENTENCE = re.compile(rf"(?<![.!?…])[.!?;:…][.!?…]*+[{_CLOSING}]*+(?=\s)|[。！？；…]+[」』”’）】》]*")
_CLAUSE = re.compile(r",(?=\s)|\s[-–—](?=\s)|[，、：—]")
_WORD = re.compile(r"\s+")
_ENDS = re.compile(rf"[.!?。！？…][{_CLOSING}」』）】》]*$")
# A full stop after these does not end a sentence.
_ABBREVIATIONS = frozenset(
    word
    for line in (
        "mr mrs ms mx dr prof st mt ft rev hon gen col maj capt cmdr lt sgt gov sen rep pres supt messrs jr sr vs",
        "fig figs eq nos vol vols pp eds approx est dept ext inc ltd corp bros e.g i.e cf viz",
        "z.b d.h bzw nr hr fr abb bspw mme mlle sra",
    )
    for word in line.split()
)
_JOINER = "\u200d"  # zero-width joiner, inside an emoji


def split_text(text: str, max_letters: int) -> list[str]:
    """Splits a text after sentences, else after clauses, else between words, else between letters.

    A text that is short enough stays whole, and short sentences stay together. Chinese and Japanese need no spaces. A
    letter that takes longer to say counts for several: a Chinese character for four, Hangul for three, Kana for two.

    Args:
        text: The text.
        max_letters: Letters of a piece, at most; a single Chinese character may exceed it.

    Returns:
        The pieces, without whitespace around them, none empty unless the text is.
    """
    pieces = [text.strip()]
    for cuts in (_sentence_cuts, _clause_cuts, _word_cuts, _letter_cuts):
        pieces = [part for piece in pieces for part in _split(piece, cuts, max_letters)]
    return pieces


def ends_sentence(text: str) -> bool:
    """Whether a text ends with a mark that ends a sentence."""
    return _ENDS.search(text.rstrip()) is not None


def count_letters(text: str) -> int:
    """The number of letters of a text as `split_text` counts them."""
    return sum(map(_weight, text))


def _weight(letter: str) -> int:
    code = ord(letter)
    if code < 0x3040:
        return 1
    return next((weight for first, last, weight in _WEIGHTS if first <= code <= last), 1)


def _split(text: str, find_cuts: Callable[[str], Sequence[int]], max_letters: int) -> list[str]:
    """The text, cut at as few of the possible cuts as give pieces of at most `max_letters`, if they suffice."""
    total = [0, *accumulate(map(_weight, text))]
    if total[-1] <= max_letters:
        return [text]
    pieces, start, before = list[str](), 0, 0
    for cut in (*find_cuts(text), len(text)):
        if total[cut] - total[start] > max_letters and before > start:
            pieces.append(text[start:before].rstrip())
            start = before
            while start < len(text) and text[start].isspace():
                start += 1
        before = cut
    return [*pieces, text[start:]] if start < len(text) else pieces


def _sentence_cuts(text: str) -> list[int]:
    return [match.end() for match in _SENTENCE.finditer(text) if not _is_abbreviation(text, match)]


def _is_abbreviation(text: str, mark: re.Match[str]) -> bool:
    """Whether a full stop belongs to an abbreviation or an initial, or the sentence goes on in lower case."""
    if mark.group() != ".":
        return False
    word = re.split(r"[\s(\"'“‘\[]", text[max(mark.start() - 20, 0) : mark.start()])[-1]
    follows = text[mark.end() : mark.end() + 20].lstrip()[:1]
    initial = len(word) == 1 and word.isalpha() and word.isupper() and word != "I"
    return initial or word.lower() in _ABBREVIATIONS or follows.islower()


def _clause_cuts(text: str) -> list[int]:
    return [match.end() for match in _CLAUSE.finditer(text)]


def _word_cuts(text: str) -> list[int]:
    return [match.start() for match in _WORD.finditer(text)]


def _letter_cuts(text: str) -> list[int]:
    """Cuts between letters, but not before an accent or inside an emoji."""
    return [
        i
        for i in range(1, len(text))
        if unicodedata.category(text[i])[0] != "M" and _JOINER not in (text[i], text[i - 1])
    ]
