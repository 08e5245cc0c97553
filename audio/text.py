"""Text preparation that speech models share."""

from __future__ import annotations

import re

from mmspec.errors import PromptError


def split_text(text: str, max_letters: int) -> list[str]:
    """Splits a text after sentences, else after commas, else between words, into pieces of at most `max_letters`.

    Short sentences stay together.

    Raises:
        PromptError: For a word longer than that.
    """
    out: list[str] = []
    for mark in (r"(?<=[.!?;:。！？])\s+", r"(?<=,)\s+", r"\s+"):
        parts = out or [text.strip()]
        out = []
        for part in parts:
            for piece in re.split(mark, part) if len(part) > max_letters else [part]:
                if out and len(out[-1]) + 1 + len(piece) <= max_letters and len(part) > max_letters:
                    out[-1] += f" {piece}"
                else:
                    out.append(piece)
    if long := next((piece for piece in out if len(piece) > max_letters), None):
        raise PromptError(
            f"text has a word of {len(long)} letters ({long[:20]}...); at most {max_letters} are possible"
        )
    return out
