"""From text to scripts: numbers are written out, words that the voice has not learnt are spelled."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mmspec.audio.spoken.config import VOICES
from mmspec.audio.spoken.script import PAUSE, Alphabet, Script
from mmspec.audio.spoken.words import LETTERS, ORDINALS, WORDS, cardinal, digits
from mmspec.errors import PromptError

MOST_WORDS = 1500  # of a text, about ten minutes
SENTENCE = 22  # words; longer sentences are broken, at a comma where there is one
SPELLED = 40  # letters of one word
LEXICON = Path(__file__).parent / "lexicon.json"
VOWELS = frozenset("aeiouAEIOU0V3@")
_SIGNS = {"%": "percent", "+": "plus", "=": "equals", "&": "and", "×": "times", "*": "times", "°": "degrees", "@": "at"}
_SHORT = {"it's": "it is", "that's": "that is", "what's": "what is", "where's": "where is", "you're": "you are"}
_TOKEN = re.compile(
    r"(?P<time>\b\d{1,2}:\d\d\b)|(?P<ordinal>\b\d{1,2}(?:st|nd|rd|th)\b)"
    r"|(?P<number>(?<![\w.])[-−]?\d{1,3}(?:,\d{3})+(?!\d)|(?<![\w.])[-−]?\d+|\d+)(?P<fraction>\.\d+)?"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)|(?P<sign>[%+=&×*°@])|(?P<stop>[.!?]+(?=\s|$)|\n+)|(?P<comma>[,;:()–—]+)"
)


@dataclass(frozen=True)
class Sentence:
    """Learnt words in order, `PAUSE` for a comma, and whether it ends in a question mark."""

    words: tuple[str, ...]
    asks: bool = False


@dataclass
class Transcript:
    """What a text says.

    Attributes:
        sentences: In order, at least one.
        spelled: The words of the text that the voice does not know and spells.
    """

    sentences: list[Sentence] = field(default_factory=list)
    spelled: list[str] = field(default_factory=list)


def read(text: str) -> Transcript:
    """Reads a text.

    Raises:
        PromptError: For a text without a word, one too long, or letters the voice cannot even spell.
    """
    if not isinstance(text, str):
        raise PromptError(f"text={text!r} is not allowed; it must be a string")
    shown = " ".join(text.split())
    shown = repr(shown if len(shown) <= 40 else f"{shown[:37]}...")
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    reading = Transcript()
    words: list[str] = []
    for match in _TOKEN.finditer(plain):
        piece = match.group()
        if match["stop"]:
            _close(reading, words, "?" in piece)
            words = []
        elif match["comma"]:
            words.append(PAUSE)
        else:
            words += _say(match, reading.spelled, shown)
    _close(reading, words, False)
    total = sum(len(sentence.words) for sentence in reading.sentences)
    if not total:
        raise PromptError(f"text {shown} holds nothing to say; give words, numbers or letters")
    if total > MOST_WORDS:
        raise PromptError(
            f"text {shown} has {total} words once numbers are written out; at most {MOST_WORDS} go at once"
        )
    return reading


def _say(match: re.Match[str], spelled: list[str], shown: str) -> list[str]:
    """The learnt words that a piece of text becomes; what is spelled is added to `spelled`."""
    if match["time"]:
        hour, minute = match["time"].split(":")
        rest = (
            ["o'clock"] if minute == "00" else ["O", *digits(minute[1])] if minute[0] == "0" else cardinal(int(minute))
        )
        return [*cardinal(int(hour)), *rest]
    if match["ordinal"]:
        number = int(match["ordinal"][:-2])
        return [ORDINALS[number - 1]] if 0 < number <= len(ORDINALS) else [*cardinal(number)]
    if match["number"]:
        sign, body = ["minus"] if match["number"][0] in "-−" else [], match["number"].lstrip("-−").replace(",", "")
        whole = digits(body) if len(body) > 9 or (body[0] == "0" and len(body) > 1) else cardinal(int(body))
        return [*sign, *whole, *(["point", *digits(match["fraction"][1:])] if match["fraction"] else [])]
    if match["sign"]:
        return [_SIGNS[match["sign"]]]
    word = match["word"].replace("’", "'")
    known = _known()
    if word.lower() in _SHORT:
        return _SHORT[word.lower()].split()
    if len(word) == 1 and word in LETTERS and word not in ("A", "I"):
        return [word]
    if word.lower() in known and not (word.isupper() and 1 < len(word) < 3 and word.lower() != "no"):
        return [word.lower()]
    letters = [letter for letter in word.upper() if letter != "'"]
    strange = [letter for letter in letters if letter not in LETTERS]
    if strange:
        raise PromptError(f"text {shown}: the voice cannot say {word!r}; it knows the letters A to Z")
    if len(letters) > SPELLED:
        raise PromptError(
            f"text {shown}: the word {word[:20]!r}... has {len(letters)} letters; at most {SPELLED} are spelled"
        )
    if len(letters) > 1 and word not in spelled:
        spelled.append(word)
    return letters


@cache
def _known() -> frozenset[str]:
    return frozenset(word for word in WORDS if word not in LETTERS)


def _close(reading: Transcript, words: list[str], asks: bool) -> None:
    """Adds a sentence, broken where it is too long; commas at the ends and double ones go."""
    kept: list[str] = []
    for word in words:
        if word != PAUSE or (kept and kept[-1] != PAUSE):
            kept.append(word)
    while len(kept) > SENTENCE:
        pauses = [i for i in range(SENTENCE // 3, SENTENCE) if kept[i] == PAUSE]
        cut = pauses[-1] if pauses else SENTENCE
        reading.sentences.append(Sentence(tuple(kept[:cut])))
        kept = kept[cut:]
        if kept and kept[0] == PAUSE:
            kept = kept[1:]
    while kept and kept[-1] == PAUSE:
        kept.pop()
    if kept:
        reading.sentences.append(Sentence(tuple(kept), asks))


@cache
def lexicon() -> tuple[dict[str, list[str]], list[str]]:
    """How each word is said, before a consonant and before a vowel, phones with blanks between; and all phones."""
    found = json.loads(LEXICON.read_text(encoding="utf-8"))
    return found["words"], found["phones"]


@cache
def alphabet() -> Alphabet:
    """The numbers of all words and phones."""
    return Alphabet([PAUSE, *WORDS], lexicon()[1])


def script(sentence: Sentence, voice: int) -> Script:
    """The phones of a sentence. `voice` is below the number of `VOICES`."""
    assert voice < len(VOICES)
    said, _ = lexicon()
    words, starts, phones = [PAUSE], [True], [PAUSE]
    for word, following in zip(sentence.words, (*sentence.words[1:], PAUSE), strict=True):
        if word == PAUSE:
            pronounced: Sequence[str] = [PAUSE]
        else:
            before_vowel = following != PAUSE and said[following][0][0] in VOWELS
            pronounced = said[word][before_vowel].split()
        words += [word] * len(pronounced)
        starts += [i == 0 for i in range(len(pronounced))]
        phones += pronounced
    return Script(voice, sentence.asks, [*words, PAUSE], [*starts, True], [*phones, PAUSE])
