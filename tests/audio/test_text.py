"""Splitting texts into pieces."""

from __future__ import annotations

import pytest

from mmspec.audio.text import count_letters, ends_sentence, split_text


@pytest.mark.parametrize(
    ("text", "letters", "pieces"),
    [
        ("One two. Three, four. Five", 9, ["One two.", "Three,", "four.", "Five"]),
        ("a b c d e f", 3, ["a b", "c d", "e f"]),
        (" short ", 30, ["short"]),
        ("abcdefghijkl", 5, ["abcde", "fghij", "kl"]),
        ("Wait... what? Yes.   \n\n No", 7, ["Wait...", "what?", "Yes.", "No"]),
        (
            "Dr. Smith met J. R. Ewing. At St. Mary's. Then he left, e.g. by train. It costs 3.5 dollars.",
            28,
            ["Dr. Smith met J. R. Ewing.", "At St. Mary's.", "Then he left, e.g. by train.", "It costs 3.5 dollars."],
        ),
        ('He said: "Go!" Then (why?) he went.', 16, ['He said: "Go!"', "Then (why?)", "he went."]),
        ("今天天气很好。我们去公园吧！你觉得怎么样？", 60, ["今天天气很好。我们去公园吧！", "你觉得怎么样？"]),
        ("他说：「好。」然后走了，没有回来。", 40, ["他说：「好。」", "然后走了，没有回来。"]),
        ("今天天气很好我们去公园", 20, ["今天天气很", "好我们去公", "园"]),
        ("これはペンです。あれは本です、そして", 20, ["これはペンです。", "あれは本です、", "そして"]),
        ("안녕하세요. 반갑습니다.", 18, ["안녕하세요.", "반갑습니다."]),
    ],
)
def test_texts_are_split_after_sentences_then_clauses_then_words_then_letters(
    text: str, letters: int, pieces: list[str]
) -> None:
    found = split_text(text, letters)
    assert found == pieces
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(count_letters(piece) <= letters for piece in found)


def test_accents_and_joined_emoji_are_not_torn() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert split_text(f"{family}e\u0301" * 2, 6) == [family, "e\u0301", family, "e\u0301"]


@pytest.mark.parametrize("text", ["word ", "a", "…", '."', ", ", "今", ".\n", "  ."])
def test_long_texts_of_any_kind_are_split(text: str) -> None:
    assert all(count_letters(piece) <= 300 for piece in split_text(text * 50000, 300))


def test_sentence_ends() -> None:
    assert all(map(ends_sentence, ("Yes.", 'He said "no!"', "好。」", "Really?)", "So…")))
    assert not any(map(ends_sentence, ("and then,", "one", "好，", "")))
