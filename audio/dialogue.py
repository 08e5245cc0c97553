"""Scripts of several speakers, such as `[S1] Hello. [S2] Hello.`, in parts that a model can speak."""

from __future__ import annotations

import re

from mmspec.audio.text import count_letters, ending_like, split_text


def with_tag(text: str, tag: str, tags: re.Pattern[str]) -> str:
    """The text with a speaker's tag before it, unless it begins with one of `tags`."""
    return text if tags.match(text) else f"{tag} {text}"


def dialogue_parts(text: str, tags: re.Pattern[str], max_letters: int) -> list[str]:
    """Splits a script between turns, and turns that are too long as `mmspec.audio.text.split_text` does.

    Every part of a script begins with the tag of who speaks. A text without tags is split as `split_text` does.

    Args:
        tags: Matches the tag of a speaker.
        max_letters: Of a part, its tag included.
    """
    parts: list[str] = []
    for turn in map(str.strip, re.split(rf"(?={tags.pattern})", text.strip())):
        tag = tags.match(turn)
        if tag is None:
            parts += split_text(turn, max_letters) if turn else []
            continue
        own, said = tag.group(), turn[tag.end() :].strip()
        pieces = split_text(said, max_letters - len(own) - 1) if said else []
        first, *others = [ending_like(piece, f"{own} {piece}") for piece in pieces] if len(pieces) > 1 else [turn]
        if parts and count_letters(parts[-1]) + 1 + count_letters(first) <= max_letters:
            parts[-1] = ending_like(first, f"{parts[-1]} {first}")
        else:
            parts.append(first)
        parts += others
    return parts
