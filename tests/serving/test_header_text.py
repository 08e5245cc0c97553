"""Notes in a header: printable ASCII, and read back by the usual function."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from mmspec.serving.header_text import LONGEST, in_header


@pytest.mark.parametrize(
    "notes",
    [
        ["plain words, with 'quotes' = and / signs"],
        [r"voice='C:\\x' has no effect", "one\\two"],
        ["a; b", "c;d", "100 % of it", "%41"],
        ["größe 大きさ 🙂", "a\r\nSet-Cookie: b\x07"],
        ["x", "y"],
    ],
)
def test_notes_are_read_back(notes: list[str]) -> None:
    text = in_header(notes)
    assert text.isascii() and text.isprintable()
    assert [unquote(part) for part in text.split("; ")] == notes


@pytest.mark.parametrize("note", ["é" * 400, "🙂" * 200, "a" * 2000, "\ud800" * 999])
def test_a_long_one_is_cut_between_characters(note: str) -> None:
    text = in_header([note])
    assert LONGEST - 12 <= len(text) <= LONGEST
    assert note.encode("utf-8", "replace").decode().startswith(unquote(text, errors="strict"))
