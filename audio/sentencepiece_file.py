"""Tokenizers that are published as a sentencepiece model only."""

from __future__ import annotations

from importlib import import_module
from os.path import isfile
from pathlib import Path
from typing import Any

from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import describe


def is_sentencepiece(file: str | Path) -> bool:
    """Whether a path is that of a sentencepiece model."""
    return Path(file).suffix == ".model" and isfile(file)


def read_sentencepiece(file: str | Path, family: str) -> Any:
    """The tokenizer of a file, whose method `encode` makes ids of a text.

    Args:
        family: The name of the models, for the error.

    Raises:
        ArgumentError: If the package sentencepiece is missing.
        ModelError: If the file cannot be read.
    """
    try:
        package = import_module("sentencepiece")
    except ImportError:
        raise ArgumentError(f"{family} reads texts with sentencepiece: pip install sentencepiece") from None
    try:
        return package.SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError) as error:
        raise ModelError(f"tokenizer {str(file)!r} cannot be read: {describe(error)}") from None
