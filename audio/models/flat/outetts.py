"""OuteTTS 1.0: words, their features and the codes of two codebooks in one stream of tokens.

A word is its letters, its duration and loudness, and pairs of codes of a DAC with 75 frames per second. Nothing is
constrained, as in the original: frames are read off the codes in their order. Source: `outetts` 0.4 (Apache License
2.0), its interface of version 3.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ftfy

from mmspec.arguments import check_integer, check_number, shown
from mmspec.audio.models.flat.decoding import MarkedCodes, StreamFormat
from mmspec.audio.models.flat.style import Style
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.documents import read_json
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

CODES = 1024  # of a codebook; both have one mark more
FEATURES = ("energy", "spectral_centroid", "pitch")
# Patterns and what replaces them, in order.
_REPLACED = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        ("\u2026", "..."),
        (r"\.{2,}", "..."),
        ("[\u201c\u201d\u201e\u201f\u00ab\u00bb]", '"'),
        ("[\u2018\u2019\u201b\u2039\u203a`\u00b4]", "'"),
        ("[\u2010\u2013-\u2015\u2212]", "-"),
        ("-{2,}", "-"),
        ("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200d\ufeff]", ""),
        (r"\s+", " "),
        (r"\s+(?=[,.?!:;])", ""),
        (r"([,.?!:;])(?=[^\s,.?!:;])", r"\1 "),
        (r"(\w)\s+'\s*(\w)", r"\1'\2"),
        (r"(\w)\s+'\s*([,.?!:;\s]|$)", r"\1'\2"),
        (r"(?i)(\w)\s*'\s*([tsdmren])\b", r"\1'\2"),
        (r"([?!])\1+", r"\1"),
        (r"\s+", " "),
    )
)


def outetts_style(config: Any, tokenizer: Any, speaker: Mapping[str, Any] | None = None) -> Style:
    """OuteTTS 1.0.

    Args:
        config: The model's configuration.
        speaker: A speaker as the package saves it, see `read_speaker`; None lets the model draw one for every part.

    Raises:
        ModelError: If the tokenizer is not that of an OuteTTS 1.0.
    """
    firsts = []
    for name in ("c1", "c2"):
        first, last = (tokenizer.convert_tokens_to_ids(f"<|{name}_{code}|>") for code in (0, CODES - 1))
        if first is None or first == tokenizer.unk_token_id or last != first + CODES - 1:
            raise ModelError(f"the tokenizer does not number the codes {name!r} of an OuteTTS 1.0")
        firsts.append(int(first))
    end = config.eos_token_id

    def prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
        return list(tokenizer.encode(prompt_of(text, speaker), add_special_tokens=False))

    return Style(
        StreamFormat(config.vocab_size, 0, end if isinstance(end, int) else end[0]),
        prompt,
        SamplingParams(0.4, 40, 0.9, min_p=0.05),
        (RepetitionPenalty(1.1, last=64),),
        tokens=3000,  # 20 seconds at most: two codes per frame, and the words
        letters=180,
        marked=MarkedCodes(tuple(firsts), CODES, CODES + 1),
    )


def prompt_of(text: str, speaker: Mapping[str, Any] | None) -> str:
    """The prompt: the text, after that of the speaker, whose words with their codes begin the answer."""
    text = normalized(text)
    words = ""
    if speaker is not None:
        said = str(speaker["text"]).strip()
        separator = separator_of(said)
        text = said + separator + text.strip()
        described = [word_of(word) for word in speaker["words"][:-1]]
        last = {**speaker["words"][-1], "word": speaker["words"][-1]["word"] + separator.strip()}
        words = "\n".join([*described, word_of(last)]) + "\n<|word_start|>"
    return f"<|im_start|>\n<|text_start|>{text}<|text_end|>\n<|audio_start|>\n{words}"


def separator_of(text: str) -> str:
    """What separates a speaker's text from the one that follows: a full stop, unless it ends with a mark."""
    if any("\u3040" <= letter <= "\u30ff" or "\u4e00" <= letter <= "\u9fff" for letter in text):
        return "" if not text or text[-1] in "\u3002\uff1f\uff01?!" else "\u3002"
    if not text:
        return ""
    return " " if text[-1] in ".?!" else ". "


def word_of(word: Mapping[str, Any]) -> str:
    """A word of a speaker: letters, duration, features and pairs of codes."""
    features = "".join(f"<|{name}_{word['features'].get(name, 0)}|>" for name in FEATURES)
    pairs = "".join(f"<|c1_{a}|><|c2_{b}|>" for a, b in zip(word["c1"], word["c2"], strict=True))
    return f"<|word_start|>{word['word']}<|features|><|t_{word['duration']:.2f}|>{features}<|code|>{pairs}<|word_end|>"


def normalized(text: str) -> str:
    """A text in the form of the original: plain quotes and dashes, single blanks, and none before marks."""
    text = unicodedata.normalize("NFKC", ftfy.fix_text(text))
    for pattern, by in _REPLACED:
        text = pattern.sub(by, text)
    return text.replace('"', "").strip()


def read_speaker(speaker: Any) -> dict[str, Any]:
    """A speaker from a file of the package, or as a mapping.

    Args:
        speaker: The path of a JSON file, or its content: `text`, and `words` with `word`, `duration`, `c1`, `c2` and
            `features`.

    Raises:
        ArgumentError: For anything else.
    """
    if isinstance(speaker, (str, Path)):
        speaker = read_json(Path(speaker), "speaker")
    words = speaker.get("words") if isinstance(speaker, Mapping) else None
    if not isinstance(words, list) or not words or not isinstance(speaker.get("text"), str):
        raise ArgumentError(f"speaker={shown(speaker)} is not allowed; it must have a 'text' and 'words'")
    for word in words:
        known = isinstance(word, Mapping) and all(isinstance(word.get(name), list) for name in ("c1", "c2"))
        if not known or not isinstance(word.get("word"), str) or not isinstance(word.get("features"), Mapping):
            raise ArgumentError(f"speaker has the word {shown(word)}; it needs 'word', 'c1', 'c2' and 'features'")
        codes = [*word["c1"], *word["c2"]]
        if len(word["c1"]) != len(word["c2"]) or not all(type(c) is int and 0 <= c < CODES for c in codes):
            raise ArgumentError(f"speaker has other codes than pairs of 0 to {CODES - 1} in {word['word']!r}")
        check_number(f"speaker duration of {word['word']!r}", word.get("duration"), 0, 1e6)
        for name in FEATURES:
            check_integer(f"speaker {name} of {word['word']!r}", word["features"].get(name, 0), 0, 100)
    return dict(speaker)
