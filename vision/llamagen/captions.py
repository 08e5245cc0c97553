"""Prompts cleaned as LlamaGen cleaned the captions of its training: links, markup, ids and odd punctuation go."""

from __future__ import annotations

import html
import re
import urllib.parse
import warnings

import ftfy
from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning

Rules = tuple[tuple[re.Pattern[str], str], ...]

_DOMAIN = r"[a-zA-Z0-9.\-]+[.](?:com|co|ru|net|org|edu|gov|it)[\w/-]*\b/?(?!@)"
_FORMAT = "png|jpg|jpeg|bmp|webp|eps|pdf|apk|mp4"
_DASHES = (
    "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0"
    "\ufe31\ufe32\ufe58\ufe63\uff0d"
)


def _rules(*pairs: tuple[str, str]) -> Rules:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


# In the order of the published cleaner; each rule sees what the ones before it left.
_LINKS = _rules(
    ("<person>", "person"),
    (rf"\b(?:https?:(?:/{{1,3}}|[a-zA-Z0-9%])|{_DOMAIN})", ""),
    (rf"\b(?:www:(?:/{{1,3}}|[a-zA-Z0-9%])|{_DOMAIN})", ""),
)
_MARKS = _rules(
    (r"@\w+\b", ""),  # nicknames
    ("[\u31c0-\u9fff]+", ""),  # Chinese characters
    (f"[{_DASHES}]+", "-"),
    ("[`\u00b4\u00ab\u00bb\u201c\u201d\u00a8]", '"'),
    ("[\u2018\u2019]", "'"),
    (r"&quot;?", ""),
    (r"&amp", ""),
    (r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}", " "),  # IP addresses
    (r"\d:\d\d\s+$", ""),
    (r"\\n", " "),
    (r"#\d{1,3}\b", ""),
    (r"#\d{5,}\b", ""),
    (r"\b\d{6,}\b", ""),
    (rf"\S+\.(?:{_FORMAT})", ""),
    (r"[\"']{2,}", '"'),
    (r"\.{2,}", " "),
    (r"[#®•©™&@·º½¾¿¡§~)(\]\[}{|\\/*]+", " "),
    (r"\s+\.\s+", " "),
)
_CODES = _rules(
    (r"\b[a-zA-Z]{1,3}\d{3,15}\b", ""),  # such as jc6640
    (r"\b[a-zA-Z]+\d+[a-zA-Z]+\b", ""),
    (r"\b\d+[a-zA-Z]+\d+\b", ""),
    (r"(?:worldwide\s+)?(?:free\s+)?shipping", ""),
    (r"(?:free\s)?download(?:\sfree)?", ""),
    (r"\bclick\b\s(?:for|on)\s\w+", ""),
    (rf"\b(?:{_FORMAT})(?:\simages?)?", ""),
    (r"\bpage\s+\d+\b", ""),
    (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
    ("\\b\\d+\\.?\\d*[x\u0445\u00d7]\\d+\\.?\\d*\\b", ""),  # sizes, with the letters and the sign
    (r"\b\s+:\s+", ": "),
    (r"(\D[,./])\b", r"\1 "),
    (r"\s+", " "),
    (r"^[\"']([\w\W]+)[\"']$", r"\1"),
    (r"^['_,\-:;]", ""),
    (r"['_,\-:+]$", ""),
    (r"^\.\S+$", ""),
)
_JOINTS = re.compile("[-_]")
_MAX_JOINTS = 3  # a caption with more is words joined by them


def clean_caption(caption: str) -> str:
    """The caption as the published sampler tokenizes it: cleaned twice, in lower case."""
    return _clean_once(_clean_once(caption))


def _clean_once(caption: str) -> str:
    caption = urllib.parse.unquote_plus(caption).strip().lower()
    caption = _strip_markup(_apply(_LINKS, caption))
    caption = _apply(_MARKS, caption)
    if len(_JOINTS.findall(caption)) > _MAX_JOINTS:
        caption = _JOINTS.sub(" ", caption)
    caption = html.unescape(html.unescape(ftfy.fix_text(caption))).strip()
    return _apply(_CODES, caption).strip()


def _strip_markup(caption: str) -> str:
    with warnings.catch_warnings():
        # A caption may look like a file name or a link.
        warnings.simplefilter("ignore", MarkupResemblesLocatorWarning)
        return BeautifulSoup(caption, features="html.parser").text


def _apply(rules: Rules, caption: str) -> str:
    for pattern, replacement in rules:
        caption = pattern.sub(replacement, caption)
    return caption
