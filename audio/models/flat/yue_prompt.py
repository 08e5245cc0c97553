"""Prompts of YuE: lyrics by segment, special tokens, and reference audio as codes.

Source: the repository YuE at 9f1394b (Apache License 2.0), its `mmtokenizer.py` and `infer.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from torch import Tensor

# Ids of the tokenizer, whose model does not find these tokens in texts by itself.
SPECIAL = {
    "<CLS>": 83734, "<SEP>": 83735, "<EOD>": 32000, "<MASK>": 83736, "<SOA>": 32001, "<EOA>": 32002, "<SOV>": 32005,
    "<EOV>": 32006, "<SOI>": 32003, "<EOI>": 32004, "<s_local>": 32007, "<e_local>": 32008, "<s_global>": 32009,
    "<e_global>": 32010, "<stage_1>": 32013, "<stage_2>": 32017, "<PAD>": 83737, "<s>": 1, "</s>": 2,
}  # fmt: skip
START, END, XCODEC = SPECIAL["<SOA>"], SPECIAL["<EOA>"], 32016
STAGE_1, STAGE_2 = SPECIAL["<stage_1>"], SPECIAL["<stage_2>"]
FIRST, CODES = 45334, 1024  # the id of entry 0 of codebook 0, and the entries of each codebook
_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
_SEGMENT = re.compile(r"\[(\w+)\](.*?)(?=\[|\Z)", re.DOTALL)


def text_ids(encode: Callable[[str], Sequence[int]], text: str) -> list[int]:
    """The ids of a text, in which special tokens may be spelled out."""
    found: list[int] = []
    for piece in _SPECIAL.split(text):
        found += [SPECIAL[piece]] if piece in SPECIAL else encode(piece)
    return found


def segments_of(lyrics: str) -> list[str]:
    """The segments of lyrics, each after its name in brackets, such as [verse]; what precedes them is left out."""
    return [f"[{name}]\n{text.strip()}\n\n" for name, text in _SEGMENT.findall(lyrics)]


def head_ids(
    encode: Callable[[str], Sequence[int]], genres: str, segments: Sequence[str], reference: Tensor | None
) -> list[int]:
    """The ids that begin a song: instruction, genres, all lyrics, and reference audio.

    Args:
        encode: Texts without special tokens to ids.
        genres: Genre, mood, instruments and voices.
        reference: Codes int64 [F], or [F, 2] of vocals and accompaniment; or None.
    """
    lyrics = "\n".join(segments)
    asked = f"Generate music from the given lyrics segment by segment.\n[Genre] {genres.strip()}\n{lyrics}"
    found = text_ids(encode, asked)
    if reference is not None:
        codes = [START, XCODEC, *(reference.flatten() + FIRST).tolist(), END]
        found += [*text_ids(encode, "[start_of_reference]"), *codes, *text_ids(encode, "[end_of_reference]")]
    return found


def segment_ids(encode: Callable[[str], Sequence[int]], segment: str) -> list[int]:
    """The ids that begin a segment, up to its codes."""
    text = segment.replace("[start_of_segment]", "").replace("[end_of_segment]", "")
    return [*text_ids(encode, "[start_of_segment]"), *text_ids(encode, text), START, XCODEC]
