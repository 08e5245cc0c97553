"""What is done to a text before its words are read: Markdown is left out, powers and fractions are written out."""

from __future__ import annotations

import re
import unicodedata

from mmspec.audio.spoken.words import ORDINALS

# Lines of Markdown that are rules, and marks at the beginnings of headings, items and quotations.
_RULE = re.compile(r"^[ \t]*(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,}|`{3,}[^\n]*)$", re.MULTILINE)
_LINE_MARK = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|[*•-][ \t]+|(?:>[ \t]?)+)", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]\n]{0,200})\]\([^)\s]{0,1000}\)")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3}|~~|`{1,2})(?=[^\s*])([^\n]{1,200}?)(?<=\S)\1(?![\w*])")
_POWER = re.compile(r"(?:(?<=\d)|(?<=\b[a-zA-Z]))[⁰¹²³⁴-⁹]{1,9}")
_FOOTNOTE = re.compile(r"[⁰¹²³⁴-⁹]")
_FRACTION = re.compile(r"(?P<whole>\d+[ \t]?)?(?P<sign>[¼-¾⅐-⅞])|(?<![\d/.,])(?P<text>1/2|1/4|3/4)(?![\d/])")
# A star between two operands.
_TIMES = re.compile(r"(?<=[\w)])([ \t]?)\*([ \t]?)(?=[\w(.-])")


def plain_text(text: str) -> str:
    """A text without Markdown, in the letters and digits that `mmspec.audio.spoken.text` reads."""
    text = _LINK.sub(r"\1", _LINE_MARK.sub("", _RULE.sub("", text)))
    text = _TIMES.sub(r"\1×\2", _EMPHASIS.sub(r"\2", _EMPHASIS.sub(r"\2", text)))
    text = _POWER.sub(lambda found: f" to the power of {unicodedata.normalize('NFKD', found[0])} ", text)
    text = _FRACTION.sub(_fraction, _FOOTNOTE.sub("", text))
    # Of other signs of numbers, such as those in circles, the digits do not join those beside them.
    parts = (f" {part} " if unicodedata.category(letter) == "No" else part for letter, part in _decomposed(text))
    return "".join(parts)


def _decomposed(text: str) -> list[tuple[str, str]]:
    """Each letter of a text, and what it stands for without accents."""
    return [
        (letter, "".join(c for c in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(c)))
        for letter in text
    ]


def _fraction(found: re.Match[str]) -> str:
    top, bottom = (unicodedata.normalize("NFKD", found["sign"]) if found["sign"] else found["text"]).replace(
        "\u2044", "/"
    ).split("/")  # fmt: skip
    named = {("1", "2"): "a half", ("1", "4"): "a quarter"}.get((top, bottom))
    if named is None and top == "1" and int(bottom) <= len(ORDINALS):
        named = f"one {ORDINALS[int(bottom) - 1]}"
    if named is None:
        decimals = f"{int(top) / int(bottom):.3f}".rstrip("0").removeprefix("0")
        return f"{(found['whole'] or '').strip()}{decimals}"
    return f"{found['whole'].strip()} and {named} " if found["whole"] else f" {named} "


def is_silent(letter: str) -> bool:
    """Whether a sign that has no word is not missed: blanks, accents, marks of punctuation."""
    category = unicodedata.category(letter)
    return letter not in "#/\\|~^<>§‰†‡•" and (category[0] in "ZMC" or category[0] == "P" or letter == "`")
