"""Chatterbox Multilingual as published: other weights and another vocabulary in Chatterbox's repository.

A text is normalized as Chatterbox's, in lower case and decomposed (NFKD), and begins with the token of its language.
Chinese characters are written as Cangjie codes; Japanese and Russian are prepared by other packages.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from mmspec.arguments import shown
from mmspec.audio.models.codec_lm import chatterbox
from mmspec.audio.models.codec_lm.chatterbox import PUNCTUATION, Chatterbox, normalize_punctuation, read_t3
from mmspec.errors import ArgumentError, ModelError, did_you_mean
from mmspec.files.checkpoint import describe
from mmspec.files.documents import read_json

FILES = ("t3_mtl23ls_v3.safetensors", "t3_mtl23ls_v2.safetensors")  # the first that is there
VOCABULARY, CANGJIE = "grapheme_mtl_merged_expanded_v1.json", "Cangjie5_TC.json"
LANGUAGES = (
    "ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl", "pt", "ru",
    "sv", "sw", "tr", "zh",
)  # fmt: skip
ENDS = (*chatterbox.ENDS, "\u3001", "\uff0c", "\u3002", "\uff1f", "\uff01")


def is_multilingual(folder: Path) -> bool:
    """Whether a folder contains a published Chatterbox Multilingual."""
    return any((folder / file).is_file() for file in FILES)


def read(
    folder: Path, tokenizer: Any, voice: Any, device: str, dtype: torch.dtype, options: dict[str, Any]
) -> Chatterbox:
    """Reads a Chatterbox Multilingual from its published folder.

    Args:
        tokenizer: A tokenizer, or its path; None is the one in the folder.
        voice: A file like `conds.pt`, or the mapping under its key `t3`; None is the file in the folder.
        device: Where to load the model.
        options: `language`, one of `LANGUAGES`, `t3_model`, "v2" or "v3" (the latest in the folder), and
            `exaggeration` are taken from it.

    Raises:
        ModelError: For missing, broken or unsupported files.
        ArgumentError: For options that are not allowed, a missing or incomplete voice, and a language whose package is
            not installed.
    """
    language, version = options.pop("language", None), options.pop("t3_model", None)
    if not isinstance(language, str) or language not in LANGUAGES:
        near = did_you_mean(language, LANGUAGES) if isinstance(language, str) else ""
        raise ArgumentError(f"language={shown(language)} is not allowed{near}; it is one of {', '.join(LANGUAGES)}")
    found = {file.stem.rpartition("_")[2]: file for name in FILES if (file := folder / name).is_file()}
    if version is not None and (not isinstance(version, str) or version not in found):
        raise ArgumentError(f"t3_model={shown(version)} is not allowed; the folder has {', '.join(found)}")
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        where = Path(tokenizer or folder)
        tokenizer = chatterbox.read_tokenizer(where / VOCABULARY if where.is_dir() else where)
    encode = encoder(tokenizer, language, folder)
    file = found[version] if version else next(iter(found.values()))
    return read_t3(file, encode, voice, device, dtype, options, ("language", "t3_model"))


def encoder(tokenizer: Tokenizer, language: str, folder: Path) -> Callable[[str], list[int]]:
    """The function that maps texts of a language to ids.

    Raises:
        ArgumentError: If the language needs a package that is not installed.
        ModelError: If it needs a file that is missing.
    """
    prepare = preparation(language, folder)

    def encode(text: str) -> list[int]:
        text = unicodedata.normalize("NFKD", normalize_punctuation(text, PUNCTUATION, ENDS).lower())
        return list(tokenizer.encode(f"[{language}]{prepare(text)}".replace(" ", "[SPACE]")).ids)

    return encode


def preparation(language: str, folder: Path) -> Callable[[str], str]:
    """What is done to a text of a language before it is split into tokens; see `encoder`."""
    if language == "zh":
        segmenter = package("spacy_pkuseg", language)
        try:
            return cangjie(folder / CANGJIE, segmenter.pkuseg().cut)
        except OSError as error:  # its first call downloads a model
            raise ArgumentError(f"language='zh' needs a model of spacy_pkuseg: {describe(error)}") from None
    if language == "ja":
        return kana(package("pykakasi", language).kakasi().convert)
    if language == "ko":
        return str.strip  # syllables are decomposed already
    # The package's own installation lacks this one, and leaves texts as they are without it. It leaves Hebrew texts so
    # in any case: it calls `dicta_onnx.Dicta` without the file of a model that this class requires.
    if language == "ru" and (found := installed("russian_text_stresser.text_stresser")) is not None:
        return found.RussianTextStresser().stress_text
    return str


def installed(name: str) -> Any:
    """A module, or None if it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        return None


def package(name: str, language: str) -> Any:
    """A package that a language needs.

    Raises:
        ArgumentError: If it is not installed.
    """
    if (found := installed(name)) is None:
        raise ArgumentError(
            f"language={language!r} needs the package {name}; run: pip install {name.replace('_', '-')}"
        )
    return found


def cangjie(file: Path, segment: Callable[[str], list[str]]) -> Callable[[str], str]:
    """The function that writes Chinese characters as tokens of their Cangjie codes, with blanks between words.

    Of characters with the same code, the later ones are numbered from 1.

    Args:
        file: A JSON list of a character, a tab and its code.
        segment: Splits a text into words.

    Raises:
        ModelError: If the file is missing or damaged.
    """
    if not file.is_file():
        raise ModelError(f"file '{file}' is missing, which Chinese texts need; it is in ResembleAI/chatterbox")
    entries = read_json(file, "file")
    if not isinstance(entries, list) or not all(isinstance(entry, str) and "\t" in entry for entry in entries):
        raise ModelError(f"file '{file}' is not a list of characters and their codes")
    codes: dict[str, str] = {}
    characters: dict[str, list[str]] = {}
    for entry in entries:
        character, code = entry.split("\t")[:2]
        codes[character] = code
        characters.setdefault(code, []).append(character)

    def tokens(character: str) -> str:
        code = codes.get(character) if unicodedata.category(character) == "Lo" else None
        if code is None:
            return character
        number = characters[code].index(character)
        return "".join(f"[cj_{letter}]" for letter in f"{code}{number or ''}") + "[cj_.]"

    return lambda text: "".join(map(tokens, " ".join(segment(text))))


def kana(convert: Callable[[str], list[dict[str, str]]]) -> Callable[[str], str]:
    """The function that writes Japanese words with Kanji in Hiragana, decomposed.

    Args:
        convert: Splits a text into words, each with its writing `orig` and its Hiragana `hira`.
    """

    def word(part: dict[str, str]) -> str:
        if not any("\u4e00" <= letter <= "\u9fff" for letter in part["orig"]):
            return part["orig"]
        read = part["hira"]
        return f" {read}" if read[:1] in ("\u306f", "\u3078") else read

    return lambda text: unicodedata.normalize("NFKD", "".join(map(word, convert(text))))
