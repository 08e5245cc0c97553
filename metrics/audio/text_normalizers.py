"""Whisper's normalizers of texts, of transformers, as published error rates of speech use them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_SPELLED = re.compile(r"\b[^\W\d_](?: [^\W\d_]\b)+")


def english(spellings: Mapping[str, str]) -> Callable[[str], str]:
    """The normalizer of English: numbers as digits, contractions as words, spellings as American ones.

    After it, letters that are spelled are one word: `B K seven` and `BK7` both become `bk 7`.

    Args:
        spellings: Other spellings and the American ones, from the tokenizer of a Whisper.
    """
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    whisper = EnglishTextNormalizer(dict(spellings))
    return lambda text: _SPELLED.sub(lambda found: found[0].replace(" ", ""), " ".join(whisper(text).split()))


def basic() -> Callable[[str], str]:
    """The normalizer of other languages: lower case, without punctuation and symbols."""
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer

    whisper = BasicTextNormalizer()
    return lambda text: " ".join(whisper(text).split())
