"""The words of a text as Kyutai TTS reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from mmspec.audio.models.kyutai_tts.machine import Entry

SPEAKER_ID = 1  # the text id before the first word of the main speaker
FRAME_RATE = 12.5
# White space, or a pause such as <break time="0.5s"/>.
_GAP = re.compile(r"(?:<break\s+time=\"([0-9]{1,9}(?:\.[0-9]*)?)s\"\s*/?>)|(?:\s+)")
_REPLACED = {"’": "'", ":": " ", "(": "", ")": ""}


def entries(
    text: str, encode: Callable[[str], Sequence[int]], padding_between: int = 1, speakers: bool = True
) -> list[Entry]:
    """The words and pauses of a text, as in the original.

    Args:
        text: One turn of one speaker.
        encode: Makes ids of a word.
        padding_between: Steps between words, at least; the original's example has 1.
        speakers: Whether the first word begins with the id of its speaker, as models with several have it.
    """
    for old, new in _REPLACED.items():
        text = text.replace(old, new)
    out, begins = list[Entry](), speakers

    def word(part: str) -> None:
        nonlocal begins
        if part:
            ids = [SPEAKER_ID] * begins + list(encode(part))
            begins = False
            out.append(Entry(tuple(ids), max(0, padding_between + len(ids) - 1) if padding_between else 0))

    start = 0
    for gap in _GAP.finditer(text):
        word(text[start : gap.start()])
        if gap[1]:
            out.append(Entry((), round(float(gap[1]) * FRAME_RATE)))
        start = gap.end()
    word(text[start:])
    return out
