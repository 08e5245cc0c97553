"""Scripts without blanks: words end where ICU finds them if it is installed, and a remark tells if it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType

import pytest

from mmspec.audio import text_cuts
from mmspec.audio.adapter import PreparedText
from mmspec.audio.text import count_letters, split_text

# Words, by language; no outside reference is needed to know where these end.
WORDS = {
    "Thai": ["เรา", "ไป", "ตลาด", "วัน", "นี้", "อากาศ", "ดี", "มาก"],
    "Lao": ["ຂ້ອຍ", "ໄປ", "ຕະຫຼາດ", "ມື້ນີ້"],
    "Khmer": ["ខ្ញុំ", "ទៅ", "ផ្សារ", "ថ្ងៃនេះ"],
    "Burmese": ["ဈေး", "သို့", "ယနေ့", "သွား", "သည်"],
    "Chinese": ["我", "今天", "去", "市场", "买", "了", "苹果"],
}


def breaker_of(words: list[str]) -> ModuleType:
    """A stand-in for the module of icu4py, with the words of one language."""

    class WordBreaker:
        def __init__(self, text: str, locale: str) -> None:
            self._text = text

        def __iter__(self) -> Iterator[str]:
            place = 0
            while place < len(self._text):
                word = next((word for word in words if self._text.startswith(word, place)), self._text[place])
                yield word
                place += len(word)

    module = ModuleType("icu4py.breakers")
    module.__dict__["WordBreaker"] = WordBreaker
    return module


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    def install(words: list[str]) -> None:
        monkeypatch.setitem(sys.modules, "icu4py", ModuleType("icu4py"))
        monkeypatch.setitem(sys.modules, "icu4py.breakers", breaker_of(words))
        monkeypatch.setattr(text_cuts, "finds_words", lambda: True)

    return install


@pytest.mark.parametrize("language", WORDS)
def test_parts_end_with_words(language: str, installed: Callable[[list[str]], None]) -> None:
    words = WORDS[language]
    installed(words)
    text = "".join(words) * 6
    ends = {0}
    for word in words * 6:
        ends.add(max(ends) + len(word))
    for most in range(1 + max(map(count_letters, words)), 60, 3):
        parts, place = split_text(f"{text}?", most), 0
        assert "".join(parts) == f"{text}?"
        for part in parts[:-1]:
            place += len(part)
            assert place in ends, part


def test_blanks_come_first(installed: Callable[[list[str]], None]) -> None:
    installed(WORDS["Thai"])
    phrase = "".join(WORDS["Thai"])
    assert split_text(" ".join([phrase] * 3), len(phrase) + 5) == [phrase] * 3


@pytest.mark.parametrize(
    ("texts", "text", "joined"),
    [
        (["เราไปตลาด", "วันนี้อากาศ"], "เราไปตลาดวันนี้อากาศ", True),
        (["เราไปตลาด", "วันนี้อากาศ"], "เราไปตลาด วันนี้อากาศ", False),
        (["ខ្ញុំទៅ", "ផ្សារ"], "ខ្ញុំទៅផ្សារ", True),
        (["one two", "three"], "one two three", False),
        (["我今天去", "市场"], "我今天去市场", False),
        (["เราไป!", "ตลาด"], "เราไป!ตลาด", False),
        ([], "เราไป", False),
    ],
)
@pytest.mark.parametrize("finds", [False, True])
def test_a_cut_inside_words_is_said(
    texts: list[str], text: str, joined: bool, finds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.audio.adapter.finds_words", lambda: finds)
    found = PreparedText(texts, ["own"], texts).with_note_on_words(text)
    note = "the text has too few blanks to be cut between words; to find words, run pip install '.[words]' in a"
    assert found.notes[0] == "own" and len(found.notes) == 1 + (joined and not finds)
    assert all(each.startswith(note) for each in found.notes[1:])


if find_spec("icu4py"):  # the extra `words`

    def test_published_words() -> None:
        """With the package itself: its places count letters as Python does, also beside those of two code units."""
        assert text_cuts.word_ends("😀เราไปตลาด") == [4, 6]
