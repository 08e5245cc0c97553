"""`.ci/words` finds retired words in prose, identifiers and quoted names, and passes what only resembles them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ci_scripts import script


@pytest.fixture(scope="module")
def words(root: Path) -> Any:
    return script(root, "words")


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("a.py", "def token_law(p): ...", "law"),
        ("a.py", "class TokenLaw: ...", "Law"),
        ("a.py", "THE_LAWS = 1", "LAWS"),
        ("a.py", "x = 'a painter'  # prose", "painter"),
        ("a.py", "Pace = 1", "Pace"),
        ("a.py", "# see `Rows`", "Rows"),
        ("a.py", "# MMSPEC_RECORD=off", "MMSPEC_RECORD"),
        ("a.md", "Tokens behind a rejected one.", "behind"),
        ("a.md", "Recipes: drafter, rule and carry.", "and carry"),
        ("a.md", "See `Noise`.", "Noise"),
        ("a.md", "```python\nx = Noise(0)\n```", "Noise"),
    ],
)
def test_retired_words_are_found(words: Any, path: str, text: str, found: str) -> None:
    assert [word for _, word, _ in words.check(text, path)] == [found]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "flaw = lawn = 1  # outlaw, gauged"),
        ("a.py", "# Rows advance at their own pace; noise of the start; pin_memory"),
        ("a.py", "# a wheel carries the folders; codecs behind an interface"),
        ("a.md", "Noise and rows of a part. Draws are keyed."),
        ("examples/embedded/train_spoken/sentences.py", "x = 'the gauge'"),
    ],
)
def test_other_words_pass(words: Any, path: str, text: str) -> None:
    assert list(words.check(text, path)) == []
