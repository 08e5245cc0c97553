"""Where a text can be cut: at the ends of sentences, clauses, words and syllables, by the properties of Unicode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import regex

# Scripts without blanks between words; a mark needs no blank beside their letters.
_DENSE = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"
_UNSPACED = r"[[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]&&[\p{L}\p{M}]]"  # neither blanks nor other marks of words
_STARTS = regex.compile(_UNSPACED, regex.VERSION1)
_BETWEEN_WORDS = regex.compile(r"(?<=[\p{L}\p{M}\p{N}])(?=[\p{L}\p{N}])", regex.VERSION1)
_CLOSING = r"[\p{Pe}\p{Pf}\"'“‘«*_`~]"
# Marks of which one ends a sentence wherever it stands. In Burmese ၊ is rather a comma, ．may stand in a number; the
# property lacks the marks of Hebrew and Tibetan, and semicolons.
_ENDING = r"[[\p{Sentence_Terminal}--[.!?၊．]]…；؛׃།-༒]|．(?!\d)"
_SENTENCE = regex.compile(
    rf"(?<![.!?…])[.!?;:…][.!?…]*+(?:{_CLOSING}*+(?=\s)(?:\s»(?!\S))?|[\p{{Pe}}\p{{Pf}}]*+(?={_DENSE}))"
    rf"|(?<={_DENSE})[.!?;]++(?=\p{{L}})"
    rf"|(?:{_ENDING})++(?:\s[།-༒]++)*[\p{{Pe}}\p{{Pf}}]*+(?:[\"'*_]++(?!\S))?",
    regex.VERSION1,
)
_ENDS = regex.compile(rf"(?:[.!?]|(?<=\p{{Greek}});|{_ENDING}){_CLOSING}*(?:\s»)?$", regex.VERSION1)
_CLAUSE = regex.compile(
    rf",(?=\s|{_DENSE})|(?<={_DENSE}),|(?<=\S)[^\S\r\n]++[-–—](?=\s)|—"
    r"|[[[\p{Terminal_Punctuation}--\p{Sentence_Terminal}]--[,;:፡]]၊]",
    regex.VERSION1,
)
# Cuts without a mark, the better ones first: before a blank, or after what stands for one in Ethiopic and Khmer; before
# a blank that should not be broken (then where ICU finds words, if it is installed); between the words of Japanese, and
# syllables of Thai, Lao and Tibetan; beside a letter of a script without blanks; between letters with all that belongs
# to them.
_UNMARKED = tuple(
    regex.compile(pattern)
    for pattern in (
        r"(?<!\s)(?=[^\S\u00a0\u2007\u202f])|(?<=[፡\u200b])(?![\s\p{P}])",
        r"(?<!\s)(?=\s)",
        r"(?<=\p{Hiragana})(?=[\p{Han}\p{Katakana}\p{Latin}])|(?<=[\p{L}\p{M}])(?=[เ-ไເ-ໄ])|(?<=[་])(?![\s\p{P}])",
        rf"(?:(?<={_DENSE})|(?={_DENSE}))(?<!\p{{Katakana}}(?=[\p{{Katakana}}ー]))(?<![\u1039\u17d2\u0e40-\u0e44])"
        r"(?<!\p{Ps}|\p{Pi})(?![\p{M}\p{Po}\p{Pe}\p{Pf}ーぁぃぅぇぉっゃゅょァィゥェォッャュョะาำ\u0eb0\u0eb2\u0eb3]|\u200d)"
        r"(?![\u1000-\u1021]\u1037?[\u1039\u103a])",
        r"\X",
    )
)


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


# A full stop after these does not end a sentence.
_ABBREVIATIONS = _words(
    "mr mrs ms mx dr prof st mt ft rev hon gen col maj capt cmdr lt sgt gov sen rep pres supt messrs jr sr vs",
    "fig figs eq nos vol vols pp eds approx est dept ext inc ltd corp bros e.g i.e cf viz",
    "z.b d.h bzw nr hr fr abb bspw ggf evtl inkl u.a sog dhr mevr mw bijv np tzn doç mm mme mlle ste pr sra srta dra",
    "ud uds núm pág sig dott ing avv π.χ т.е т.к им ул проф акад डॉ प्रो",
)
# After these it does not before a number ...
_BEFORE_NUMBERS = _words("jan feb mar apr jun jul aug sep sept oct nov dec no p ch sec art par app op ca c tel ver pt")
# ... and after these not before a small letter, nor after letters with a full stop between them.
_BEFORE_SMALL = _BEFORE_NUMBERS | _words(
    "etc co al ed cit min max misc temp avg lb lbs oz kg km cm hr hrs mins yr yrs mo ave blvd rd",
    "usw itd itp ecc enz vb т.д т.п др руб стр",
)
_ORDINAL = regex.compile(
    r"\s+(?:Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhundert)\b"
)
_ITEM = regex.compile(r"[-*+•·–—>|]\s|#+\s|\(?\w{1,3}[.)]\s")
_BREAK = regex.compile(r"\R")
_WORD = regex.compile(r"[^\s(\"'“‘«\[]*+$")
_GAP = regex.compile(r"\s+")
_WRAPPED = 50  # letters of the longest line of a paragraph that is taken to be wrapped, at least


def line_ends(text: str) -> list[int]:
    """Where lines end that end a sentence: all but the lines of a paragraph that only its width breaks."""
    gaps = [gap for gap in _GAP.finditer(text) if gap.start() and gap.end() < len(text) and _BREAK.search(gap.group())]
    starts, found, paragraph = [0, *(gap.end() for gap in gaps)], list[int](), list[int]()

    def close() -> None:
        if not _is_wrapped(text, [(starts[i], gaps[i].start(), starts[i + 1]) for i in paragraph]):
            found.extend(gaps[i].start() for i in paragraph)
        paragraph.clear()

    for i, gap in enumerate(gaps):
        if len(_BREAK.findall(gap.group())) > 1 or _ITEM.match(text, gap.end()):
            close()
            found.append(gap.start())
        else:
            paragraph.append(i)
    close()
    return sorted(found)


def _is_wrapped(text: str, lines: Sequence[tuple[int, int, int]]) -> bool:
    """Whether lines, given their starts, ends and the starts of the next ones, have no room for the next word."""
    width = max((end - start for start, end, _ in lines), default=0)
    if width < _WRAPPED or (len(lines) == 1 and not text[lines[0][2]].islower()):
        return False
    return all(end - start + 1 + _first_word(text, after) > width for start, end, after in lines)


def _first_word(text: str, start: int) -> int:
    gap = _GAP.search(text, start, start + 20)
    return (gap.start() if gap else min(len(text), start + 20)) - start


def sentence_ends(text: str) -> list[int]:
    """Where sentences end, by marks and by lines."""
    marks = list(_SENTENCE.finditer(text))
    follows = [text[mark.end() : mark.end() + 20].lstrip()[:1] for mark in marks]
    words = [_last_word(text, mark.start()) if mark.group() == "." else "" for mark in marks]
    plain = [f for mark, f, word in zip(marks, follows, words, strict=True) if mark.group() == "." and not _fixed(word)]
    # In a text in small letters a full stop before one ends a sentence; elsewhere that is an unknown abbreviation.
    small = sum(map(str.islower, plain)) > sum(map(str.isupper, plain))
    ends = {
        mark.end()
        for mark, after, word in zip(marks, follows, words, strict=True)
        if mark.group() != "." or not _goes_on(text, mark.start(), word, after, small)
    }
    for end in line_ends(text):
        if text[end - 1] != "." or not _fixed(_last_word(text, end - 1)):
            ends.add(end)
    return sorted(ends)


def abbreviates(text: str, stop: int) -> bool:
    """Whether the full stop at `stop` follows a title or another known abbreviation, such as "Dr." or "Jan." of a date.

    Initials are left out: a letter may be the last word of a sentence.
    """
    word = _last_word(text, stop).lower()
    return word in _ABBREVIATIONS or (word in _BEFORE_NUMBERS and text[stop + 1 : stop + 20].lstrip()[:1].isdigit())


def _last_word(text: str, end: int) -> str:
    """The word before a place in a text."""
    return str(_WORD.search(text, max(end - 20, 0), end)[0])


def _fixed(word: str) -> bool:
    """Whether a full stop after a word never ends a sentence: after abbreviations and initials."""
    if len(word) == 1 and (word.isupper() or regex.match(r"[\p{Cyrillic}\p{Greek}\p{Arabic}\p{Hebrew}]", word)):
        return word not in "Iя"
    return word.lower() in _ABBREVIATIONS or regex.search(r"\p{Thai}$", word) is not None


def _goes_on(text: str, stop: int, word: str, follows: str, small: bool) -> bool:
    """Whether a sentence goes on after a full stop at `stop`, between a word and a letter."""
    if _fixed(word):
        return True
    begins = not text[:stop].endswith(f" {word}") and not text[: stop - len(word)].rstrip(" \t").rpartition("\n")[2]
    if begins and regex.fullmatch(r"\d{1,3}|\p{L}", word):  # the number of an item of a list
        return True
    if follows.isdigit():
        return word.lower() in _BEFORE_NUMBERS
    if follows.islower():
        return not small or "." in word or len(word) == 1 or word.isdigit() or word.lower() in _BEFORE_SMALL
    return word.isdigit() and _ORDINAL.match(text, stop + 1) is not None


def clause_ends(text: str) -> list[int]:
    """Where clauses end."""
    return [mark.end() for mark in _CLAUSE.finditer(text)]


def ends_with_mark(text: str) -> bool:
    """Whether a text ends with a mark that ends a sentence."""
    return _ENDS.search(text.rstrip()) is not None


def all_cuts(text: str) -> Sequence[Callable[[], list[int]]]:
    """The functions that find cuts, the best cuts first: of sentences, of clauses, and without a mark."""

    def unmarked(pattern: Any) -> list[int]:
        return [found.start() for found in pattern.finditer(text)]

    blanks, others = _UNMARKED[:2], _UNMARKED[2:]
    return (
        partial(sentence_ends, text),
        partial(clause_ends, text),
        *(partial(unmarked, each) for each in blanks),
        partial(word_ends, text),
        *(partial(unmarked, each) for each in others),
    )


def word_ends(text: str) -> list[int]:
    """Where words end in a text of a script without blanks, by the dictionaries of ICU; none without icu4py."""
    if not finds_words() or not regex.search(_DENSE, text):
        return []
    words = import_module("icu4py.breakers").WordBreaker(text, "und")  # its places count units of UTF-16
    return [end for end in accumulate(map(len, words)) if _BETWEEN_WORDS.match(text, end)]


@cache
def finds_words() -> bool:
    """Whether the package is installed that finds words in scripts without blanks."""
    return find_spec("icu4py") is not None


def are_joined(before: str, after: str, text: str) -> bool:
    """Whether two parts of a text meet where it has no blank, in a script whose words only a dictionary tells apart."""
    return bool(_STARTS.match(before[-1:]) and _STARTS.match(after)) and before[-6:] + after[:6] in text
