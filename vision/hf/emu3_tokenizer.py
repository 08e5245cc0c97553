"""The tokenizer of Emu3 and Emu3.5 in its original files: byte pairs in the format of tiktoken, and a list of marks."""

from __future__ import annotations

import base64
import binascii
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken
from transformers import Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from mmspec.errors import ModelError
from mmspec.files.inputs import read_bytes, read_text

RANKS, MARKS = "emu3.tiktoken", "emu3_vision_tokens.txt"
BEGIN, END, PAD = "<|extra_203|>", "<|extra_204|>", "<|endoftext|>"


def is_emu3_tokenizer(folder: Path) -> bool:
    """Whether a folder has the files."""
    return (folder / RANKS).is_file()


def read_emu3_tokenizer(folder: Path) -> Qwen2Tokenizer:
    """The tokenizer in a folder. Its byte pairs and the way it splits text are those of Qwen, its marks its own.

    Raises:
        ModelError: If a file is missing or damaged.
    """
    try:
        lines = read_bytes(folder / RANKS, "file").split(b"\n")
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines if line.strip()}
        listed = read_text(folder / MARKS, "file").split("\n")
    except (OSError, ValueError, IndexError, binascii.Error) as error:
        raise ModelError(f"processor={str(folder)!r} has no readable {RANKS} and {MARKS}: {error}") from None
    letters = bytes_to_unicode()

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token, rank in ranks.items():
        parts = split_below(token, ranks, rank)
        if len(parts) == 2:
            merges.append((text(parts[0]), text(parts[1])))
    tokenizer = Qwen2Tokenizer(
        vocab={text(token): rank for token, rank in ranks.items()},
        merges=merges,
        unk_token=PAD,
        eos_token=PAD,
        pad_token=PAD,
    )
    marks = [
        "<|im_start|>",
        "<|im_end|>",
        *(f"<|extra_{n}|>" for n in range(205)),
        *filter(None, map(str.strip, listed)),
    ]
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer.bos_token, tokenizer.eos_token = BEGIN, END
    return tokenizer


def split_below(token: bytes, ranks: dict[bytes, int], rank: int) -> list[bytes]:
    """The parts of a token when pairs that rank below it are merged, lowest first: the pair that it is made of."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        pairs = [ranks.get(a + b, rank) for a, b in pairwise(parts)]
        lowest = min(pairs)
        if lowest >= rank:
            break
        i = pairs.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
