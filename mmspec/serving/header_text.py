"""Text of any kind in a header, which holds printable ASCII only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from urllib.parse import quote

_PLAIN = "".join(map(chr, range(0x20, 0x7F))).translate(str.maketrans("", "", "%;"))
LONGEST = 1000


def in_header(notes: Sequence[str]) -> str:
    """Notes as the value of a header: split at "; ", and read each with `urllib.parse.unquote`.

    Printable ASCII stands for itself but for "%" and ";", which are percent-encoded as all other characters are, in
    UTF-8. What is longer than `LONGEST` is cut, between characters.
    """
    pieces: list[str] = []
    for note in notes:
        pieces += ["; "] if pieces else []
        pieces += [quote(char, safe=_PLAIN, errors="replace") for char in note]
    ends = takewhile(lambda end: end <= LONGEST, accumulate(map(len, pieces)))
    return "".join(pieces[: len(list(ends))])
