"""Text normalization and scripts: numbers are written out, words outside the vocabulary are spelled."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mmspec.audio.spoken.config import VOICES
from mmspec.audio.spoken.plain_text import is_silent, plain_text
from mmspec.audio.spoken.script import PAUSE, Alphabet, Script
from mmspec.audio.spoken.words import LETTERS, ORDINALS, WORDS, cardinal, digits
from mmspec.audio.text_cuts import abbreviates
from mmspec.errors import PromptError

MAX_WORDS = 1500  # per text, about ten minutes
MAX_SENTENCE = 22  # words; longer sentences are split, if possible at a comma
MAX_SPELLED = 40  # letters of a spelled word
MAX_NAMED = 20  # signs that a remark names
LEXICON = Path(__file__).parent / "lexicon.json"
VOWELS = frozenset("aeiouAEIOU0V3@")
_SIGNS = {"%": "percent", "+": "plus", "=": "equals", "&": "and", "×": "times", "°": "degrees", "@": "at"}
_SHORT = {"it's": "it is", "that's": "that is", "what's": "what is", "where's": "where is", "you're": "you are"}
_TOKEN = re.compile(
    r"(?P<time>\b(?:[01]?\d|2[0-4]):[0-5]\d\b)|(?P<ordinal>\b\d{1,9}(?:st|nd|rd|th)\b)"
    r"|(?P<number>(?<![\w.])[-−]?\d{1,3}(?:,\d{3})+(?!\d)|(?<![\w.])[-−]?\d+|(?<![\w.])[-−]?(?=\.\d)|\d+)"
    r"(?P<fraction>\.\d+)?"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)|(?P<sign>[%+=&×°@])|(?P<stop>[.!?]+(?=\s|$)|\n+)|(?P<comma>[,;:()–—]+)"
)


@dataclass(frozen=True)
class Sentence:
    """A normalized sentence.

    Attributes:
        words: Words of the vocabulary in order; `PAUSE` for a comma.
        is_question: Whether the sentence ends in a question mark.
        goes_on: Whether it is only the beginning of a sentence that is too long.
    """

    words: tuple[str, ...]
    is_question: bool = False
    goes_on: bool = False

    @property
    def text(self) -> str:
        """Its words, with a mark at its end."""
        words = " ".join(word for word in self.words if word != PAUSE)
        return words if self.goes_on else words + ("?" if self.is_question else ".")


@dataclass
class NormalizedText:
    """A normalized text.

    Attributes:
        sentences: The sentences in order, at least one.
        spelled: Words of the text that are outside the vocabulary and are spelled.
        dropped: Signs of the text that have no word, and are not said.
    """

    sentences: list[Sentence] = field(default_factory=list)
    spelled: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """Remarks for the caller."""
        notes = [f"spelled, since it is not in the vocabulary: {word}" for word in self.spelled]
        return [*notes, f"not said: {' '.join(self.dropped[:MAX_NAMED])}"] if self.dropped else notes


def read(text: str) -> NormalizedText:
    """Normalizes a text.

    Raises:
        PromptError: If the text has no words or too many, or letters other than A to Z.
    """
    if not isinstance(text, str):
        raise PromptError(f"text={text!r} is not allowed; it must be a string")
    shown = " ".join(text.split())
    shown = repr(shown if len(shown) <= 40 else f"{shown[:37]}...")
    plain = plain_text(text)
    normalized = NormalizedText()
    words: list[str] = []
    last = 0
    for match in _TOKEN.finditer(plain):
        piece = match.group()
        _drop(plain[last : match.start()], normalized.dropped)
        last = match.end()
        if piece == "." and abbreviates(plain, match.start()):
            continue
        if match["stop"]:
            _end_sentence(normalized, words, "?" in piece)
            words = []
        elif match["comma"]:
            words.append(PAUSE)
        else:
            words += _words_of(match, normalized.spelled, shown)
    _drop(plain[last:], normalized.dropped)
    _end_sentence(normalized, words, False)
    total = sum(len(sentence.words) for sentence in normalized.sentences)
    if not total:
        raise PromptError(f"text {shown} has nothing to say; give words, numbers or letters")
    if total > MAX_WORDS:
        raise PromptError(
            f"text {shown} has {total} words once numbers are written out; at most {MAX_WORDS} are allowed"
        )
    return normalized


def _drop(text: str, dropped: list[str]) -> None:
    """Adds the signs of a text that are missed when they are not said."""
    dropped += [letter for letter in dict.fromkeys(text) if letter not in dropped and not is_silent(letter)]


def _words_of(match: re.Match[str], spelled: list[str], shown: str) -> list[str]:
    """The words of the vocabulary for a match of `_TOKEN`; a word that is spelled is added to `spelled`."""
    if match["time"]:
        hour, minute = match["time"].split(":")
        rest = (
            ["o'clock"] if minute == "00" else ["O", *digits(minute[1])] if minute[0] == "0" else cardinal(int(minute))
        )
        return [*cardinal(int(hour)), *rest]
    if match["ordinal"]:
        number = int(match["ordinal"][:-2])
        last = number % 10 if number % 100 > 20 else number % 100
        if not 0 < last <= len(ORDINALS):
            return cardinal(number)
        before = cardinal(number - last) if number > last else []
        return [*before, *(["and"] if number > last == number % 100 else []), ORDINALS[last - 1]]
    if match["number"] is not None:
        sign, body = (
            ["minus"] if match["number"][:1] in ("-", "−") else [],
            match["number"].lstrip("-−").replace(",", ""),
        )
        whole = (
            []
            if not body
            else digits(body)
            if len(body) > 9 or (body[0] == "0" and len(body) > 1)
            else cardinal(int(body))
        )
        return [*sign, *whole, *(["point", *digits(match["fraction"][1:])] if match["fraction"] else [])]
    if match["sign"]:
        return [_SIGNS[match["sign"]]]
    word = match["word"].replace("’", "'")
    vocabulary = _vocabulary()
    if word.lower() in _SHORT:
        return _SHORT[word.lower()].split()
    if len(word) == 1 and word in LETTERS and word not in ("A", "I"):
        return [word]
    if word.lower() in vocabulary and not (word.isupper() and 1 < len(word) < 3 and word.lower() != "no"):
        return [word.lower()]
    letters = [letter for letter in word.upper() if letter != "'"]
    if any(letter not in LETTERS for letter in letters):
        raise PromptError(f"text {shown}: the voice cannot say {word!r}; only the letters A to Z are allowed")
    if len(letters) > MAX_SPELLED:
        raise PromptError(
            f"text {shown}: the word {word[:20]!r}... has {len(letters)} letters; at most {MAX_SPELLED} are allowed"
        )
    if len(letters) > 1 and word not in spelled:
        spelled.append(word)
    return letters


@cache
def _vocabulary() -> frozenset[str]:
    return frozenset(word for word in WORDS if word not in LETTERS)


def _end_sentence(normalized: NormalizedText, words: list[str], is_question: bool) -> None:
    """Adds a sentence, split if it is too long, without pauses at its ends and without repeated pauses."""
    kept: list[str] = []
    for word in words:
        if word != PAUSE or (kept and kept[-1] != PAUSE):
            kept.append(word)
    while len(kept) > MAX_SENTENCE:
        pauses = [i for i in range(MAX_SENTENCE // 3, MAX_SENTENCE) if kept[i] == PAUSE]
        cut = pauses[-1] if pauses else MAX_SENTENCE
        normalized.sentences.append(Sentence(tuple(kept[:cut]), goes_on=True))
        kept = kept[cut:]
        if kept and kept[0] == PAUSE:
            kept = kept[1:]
    while kept and kept[-1] == PAUSE:
        kept.pop()
    if kept:
        normalized.sentences.append(Sentence(tuple(kept), is_question))


@cache
def lexicon() -> tuple[dict[str, list[str]], list[str]]:
    """The pronunciations of all words, and all phones.

    A word has two pronunciations, before a consonant and before a vowel, each of phones separated by spaces.
    """
    stored = json.loads(LEXICON.read_text(encoding="utf-8"))
    return stored["words"], stored["phones"]


@cache
def alphabet() -> Alphabet:
    """The alphabet of the voice."""
    return Alphabet([PAUSE, *WORDS], lexicon()[1])


def script(sentence: Sentence, voice: int) -> Script:
    """The script of a sentence; `voice` is an index of `VOICES`."""
    assert voice < len(VOICES)
    pronunciations, _ = lexicon()
    words, word_starts, phones = [PAUSE], [True], [PAUSE]
    for word, following in zip(sentence.words, (*sentence.words[1:], PAUSE), strict=True):
        if word == PAUSE:
            word_phones: Sequence[str] = [PAUSE]
        else:
            before_vowel = following != PAUSE and pronunciations[following][0][0] in VOWELS
            word_phones = pronunciations[word][before_vowel].split()
        words += [word] * len(word_phones)
        word_starts += [i == 0 for i in range(len(word_phones))]
        phones += word_phones
    return Script(voice, sentence.is_question, [*words, PAUSE], [*word_starts, True], [*phones, PAUSE])
