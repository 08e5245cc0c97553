"""Texts of many scripts are split between sentences, by every adapter that splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import regex
from every_pipe import SPEECH
from languages import LANGUAGES, joined

from mmspec.audio.models.flat.style import Style
from mmspec.audio.text import count_letters, ends_sentence, split_text
from mmspec.errors import PromptError

# Adapters that speak one language, or answer the text instead of speaking it.
OTHERS = ("spoken", "soprano", "personaplex", "qwen2.5-omni", "qwen3-omni")


def letters(text: str) -> str:
    """The letters and digits of a text, without tags of speakers and what adapters do to marks and case."""
    return regex.sub(r"\[S\d\]|<\|speaker:\d+\|>|[^\p{L}\p{M}\p{N}]", "", text).casefold()


def check_ends(language: str, text: str, parts: list[str]) -> None:
    """No part ends inside a sentence, and a pause may follow each but the last, where marks or lines tell."""
    sentences = LANGUAGES[language]
    ends, place = set(), 0
    for i in range(len(letters(text))):
        place += len(letters(sentences[i % len(sentences)]))
        ends.add(place)
        if place >= len(letters(text)):
            break
    place = 0
    assert "".join(map(letters, parts)) == letters(text)
    for part in parts:
        place += len(letters(part))
        assert place in ends, part
        assert part is parts[-1] or language == "Thai" or ends_sentence(part), part


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_are_split_between_sentences(language: str) -> None:
    text, longest = joined(language, 8), max(map(count_letters, LANGUAGES[language]))
    for most in (longest, 2 * longest, 300):
        parts = split_text(text, most)
        assert len(parts) > 1 or count_letters(text) <= most
        assert all(count_letters(part) <= most for part in parts)
        check_ends(language, text, parts)


@pytest.mark.parametrize("name", [name for name in SPEECH if name not in OTHERS])
def test_adapters_split_between_sentences(name: str, tmp_path: Path) -> None:
    pipe: Any = SPEECH[name](tmp_path)
    if name == "flat":  # whose parts have few letters
        object.__setattr__(pipe.adapter.style, "letters", Style.letters)
    if hasattr(pipe.adapter, "frontend"):
        pipe.adapter.frontend.prompt = lambda piece: None  # tiny models have few positions
    several = 0
    for language in LANGUAGES:
        text = joined(language, 12)
        try:
            parts = list(pipe.read(text, None).texts)
        except PromptError as error:
            assert "too long" in str(error), language  # as above
            continue
        check_ends(language, text, parts)
        several += len(parts) > 1
    assert several > 10 or name == "vibevoice"  # whose parts are minutes long
