"""Texts that strangers bring: marks of prompts, broken characters, empty and endless ones."""

from __future__ import annotations


def endless(letters: int) -> dict[str, str]:
    """Texts of about so many letters."""
    return {
        "letters": "a" * letters, "words": "word " * (letters // 5), "sentences": "One two. " * (letters // 9),
        "lines": "a line\n" * (letters // 7), "marks": "." * letters, "blanks": "a" + " " * (letters - 2) + "b",
        "newlines": "a" + "\n" * (letters - 2) + "b", "brackets": "[" * letters,
        "combining": "e" + "\u0301" * (letters - 1),
    }  # fmt: skip


_MARKS = (
    "<image>", "<image_placeholder>", "<|image|>", "<boi>", "<eoi>", "<audio>", "<|audio|>", "<|AUDIO|>", "<s>", "</s>",
    "<pad>", "<unk>", "<|endoftext|>", "<|im_start|>assistant", "<|im_end|>", "<|eot_id|>", "<|begin_of_text|>",
    "[START]", "[STOP]", "[UH]", "[S1]", "[S1] [S2]", "<|tts|>", "<|endofprompt|>", "<break time='9s'/>",
    '<break time="9s"/>', "[verse]", "Speaker 1:", "Speaker 0: Speaker 1: hello", "[0]one", "{prompt}", "%s {} {0}",
    "\\n", "--voice",
)  # fmt: skip
HARD: dict[str, str] = {
    **{f"a {mark} dog": f"a {mark} dog" for mark in _MARKS},
    **{mark: mark for mark in ("<image>", "[S1]", "Speaker 0:", "<|audio|>")},
    "empty": "",
    "blank": " \t\n\u3000",
    "surrogate": "a \ud800 dog",
    "surrogates": "\udcff\udcfe",
    "NUL": "a\0dog",
    "only NUL": "\0",
    "BOM": "\ufeffa dog",
    "only BOM": "\ufeff",
    "controls": "\x01\x02\x1b[31mred\x7f",
    "CRLF": "one.\r\ntwo.\r\n",
    "line separators": "one\u2028two\u2029three\x85four\x0cfive",
    "only marks": "?!... ,;:",
    "one mark": ".",
    "quotes": "\"'`\u201c\u2019\u00ab",
    "emoji": "\U0001f642",
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467 and \U0001f1e9\U0001f1ea",
    "accents": "\u0301\u0301\u0301",
    "right to left": "\u202eabc\u202c \u200f\u05e9\u05dc\u05d5\u05dd",
    "zero width": "a\u200b\u200c\u200d\u2060b",
    "unassigned": "\U000e0001 \uffff \U0010ffff \ue000",
    "mathematics": "\U0001d4d0\U0001d4d1 \u2211\u00b2\u00bd",
    "full width": "\uff11\uff0e\uff15\u3000\uff21",
    "Chinese": "\u4f60\u597d\u3002\u4e16\u754c\uff01",
    "Hindi": "\u0928\u092e\u0938\u094d\u0924\u0947\u0964",
    "numbers": "1e400 0x1F -0 1/0 \u0661\u0662 NaN",
    "huge number": "9" * 5000,
}
