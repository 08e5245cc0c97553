"""Soprano: a small Qwen3 that writes audio tokens of any id, whose decoder reads its hidden states.

Source: the package `soprano-tts` 0.2.0 (Apache License 2.0).
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.style import Style
from mmspec.audio.text import split_text
from mmspec.sampling.logits_processors import RepetitionPenalty
from mmspec.sampling.params import SamplingParams

LETTERS, SHORT = 300, 30  # letters of a part, at most, and below which it is joined with another
_END = re.compile(r"[!?][!?.]*|\.[!?.]*(?= |$)")
_QUOTES = str.maketrans("\u2018\u2019", "''")
_UNKNOWN = re.compile(r"[^a-z !$%&'*+,\-.0-9?]")


def soprano_style(config: Any, tokenizer: Any) -> Style:
    """Soprano, whose parts are sentences.

    Args:
        config: The model's configuration.
    """
    end = config.eos_token_id
    # The package's defaults; its temperature of 0 becomes 0.001, and transformers' generate adds a top-k.
    return Style(
        StreamFormat(config.vocab_size, 0, end if isinstance(end, int) else end[0]),
        soprano_prompt,
        SamplingParams(0.0, 50, 0.95),
        (RepetitionPenalty(1.2),),
        tokens=min(512, config.max_position_embeddings // 2),  # 33 seconds
        letters=LETTERS,
        split=soprano_parts,
    )


def soprano_prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
    """The prompt of Soprano: the text between marks."""
    return list(tokenizer(f"[STOP][TEXT]{text}[START]")["input_ids"])


def soprano_parts(text: str) -> list[str]:
    """The sentences of a text in the letters that Soprano knows; short ones are joined with the one before.

    A line without an end gets a full stop. Numbers, abbreviations and symbols are not written out, as the package's
    `clean_text` does: apply that before.
    """
    plain = unicodedata.normalize("NFKD", text.translate(_QUOTES)).lower()
    lines = [" ".join(_UNKNOWN.sub("", " ".join(line.split())).split()) for line in plain.splitlines()]
    text = " ".join(line if line[-1] in ".!?" else f"{line.rstrip(' ,')}." for line in lines if line)
    cuts = [0, *(found.end() for found in _END.finditer(text)), len(text)]
    sentences = [text[a:b].strip() for a, b in zip(cuts, cuts[1:], strict=False)]
    joined: list[str] = []
    for sentence in (each for each in sentences if each.strip(" .,;:!?")):
        if joined and len(joined) == 1 and len(joined[0]) < SHORT:
            joined[0] = f"{joined[0]} {sentence}"
        elif joined and len(sentence) < SHORT:
            joined[-1] = f"{joined[-1]} {sentence}"
        else:
            joined.append(sentence)
    return [part for sentence in joined for part in split_text(sentence, LETTERS)]
