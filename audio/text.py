"""Text preparation that speech models share: splitting at sentences, clauses, words, letters."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from mmspec.audio.text_cuts import all_cuts, ends_with_mark, line_ends
from mmspec.errors import PromptError

MARKS = re.compile(r"<\|[^<>|]*\|>")  # of prompts, as most models write them

# Speech per letter relative to a Latin letter, roughly: a Chinese character takes as long as four.
_WEIGHTS = ((0x3040, 0x30FF, 2), (0x3400, 0x4DBF, 4), (0x4E00, 0x9FFF, 4), (0xAC00, 0xD7A3, 3), (0xF900, 0xFAFF, 4),
            (0x20000, 0x3FFFF, 4), (0xFF66, 0xFF9D, 2))  # fmt: skip


class Line(str):
    """A piece of a text that ends with a line, so that a pause may follow it without a mark."""

    __slots__ = ()


def split_text(text: str, max_letters: int) -> list[str]:
    """Splits a text after sentences, else after clauses, else between words, else between syllables or letters.

    A text that is short enough stays whole, and short sentences stay together. Sentences and clauses end with the marks
    of any script, and with lines, unless a paragraph is only wrapped. A letter that takes longer to say counts for
    several: a Chinese character for four, Hangul for three, Kana for two.

    Args:
        max_letters: Letters of a piece, at most; a single Chinese character may exceed it.

    Returns:
        The pieces, without whitespace around them, none empty unless the text is; those that end with a line are
        `Line`.
    """
    text = text.strip()
    total = [0, *accumulate(map(_weight, text))]
    return _split(text, max_letters, lambda start, end: total[end] - total[start], all_cuts(text))


def split_tokens(text: str, max_tokens: int, count: Callable[[str], int]) -> list[str]:
    """Splits a text as `split_text` does, into pieces of at most `max_tokens` tokens; semicolons end clauses.

    Args:
        max_tokens: Tokens of a piece, at most.
        count: The number of tokens of a text.
    """
    text = text.strip()
    sentences, clauses, *others = all_cuts(text)

    def ends(semicolons: bool) -> list[int]:
        return [end for end in sentences() if (text[end - 1] in ";:") == semicolons]

    cuts = (lambda: ends(False), lambda: sorted([*ends(True), *clauses()]), *others)
    return _split(text, max_tokens, lambda start, end: count(text[start:end]), cuts)


def ending_like(piece: str, text: str) -> str:
    """A text made of a piece, which ends with a line if the piece does."""
    return Line(text) if isinstance(piece, Line) else text


def ends_sentence(text: str) -> bool:
    """Whether a piece of a text ends a sentence: with a mark, or with its line."""
    return isinstance(text, Line) or ends_with_mark(text)


def refuse_marks(name: str, text: str, marks: re.Pattern[str] = MARKS) -> None:
    """Refuses a text that contains marks of a prompt.

    Args:
        name: The argument.
        marks: Matches the marks that the model reads.

    Raises:
        PromptError: For a text that contains one.
    """
    if found := marks.search(text):
        raise PromptError(f"{name} contains {found.group()[:80]!r}, a mark of the prompt; leave it out")


def count_letters(text: str) -> int:
    """The number of letters of a text as `split_text` counts them."""
    return sum(map(_weight, text))


def _weight(letter: str) -> int:
    code = ord(letter)
    if code < 0x3040:
        return 1
    return next((weight for first, last, weight in _WEIGHTS if first <= code <= last), 1)


def _split(
    text: str, most: int, measure: Callable[[int, int], int], levels: Iterable[Callable[[], Sequence[int]]]
) -> list[str]:
    """The pieces of a text, cut at the first level of cuts that suffices for each of its parts."""
    spans = [(0, len(text))]
    for find_cuts in levels:
        if all(measure(*span) <= most for span in spans):
            break
        cuts = find_cuts()
        spans = [part for span in spans for part in _cut(text, span, cuts, most, measure)]
    lines = set(line_ends(text)) if len(spans) > 1 else set()
    return [Line(text[start:end]) if end in lines else text[start:end] for start, end in spans]


def _cut(
    text: str, span: tuple[int, int], cuts: Sequence[int], most: int, measure: Callable[[int, int], int]
) -> list[tuple[int, int]]:
    """The spans that a span becomes, cut at as few cuts as give at most `most` each, if they suffice."""
    start, last = span
    if measure(start, last) <= most:
        return [span]
    spans, before = list[tuple[int, int]](), start
    for cut in (*cuts[bisect_right(cuts, start) : bisect_left(cuts, last)], last):
        if before > start and measure(start, cut) > most:
            spans.append((start, start + len(text[start:before].rstrip())))
            start = before
            while start < last and text[start].isspace():
                start += 1
        before = cut
    return [*spans, (start, last)] if start < last else spans
