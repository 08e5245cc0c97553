"""The exceptions of mmspec.

A message is one line that names the argument, its value and what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable

LONGEST_QUOTE = 200  # characters of an input in a message
LONGEST_MESSAGE = 4000
# Inputs as messages quote them: strings, lists, mappings, and words without spaces. An apostrophe within a word does
# not begin a string.
_QUOTED = re.compile(
    r"""(?<!\w)'(?:[^'\\]|\\.){201,}'|(?<!\w)"(?:[^"\\]|\\.){201,}"|\[[^][]{201,}]|\{[^{}]{201,}}|[^\s]{201,}""",
    re.DOTALL,
)


class MMSpecError(Exception):
    """Base class of all exceptions that mmspec raises.

    Args:
        message: The message; inputs that it quotes are shortened, see `shorten`.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shorten(message))


class ArgumentError(MMSpecError, ValueError):
    """The value of an argument is not allowed."""


class PromptError(MMSpecError, ValueError):
    """The model does not accept a prompt."""


class UnknownNameError(MMSpecError, LookupError):
    """No model, recipe, rule or drafter has this name."""


class PluginError(MMSpecError, RuntimeError):
    """An entry point of another package cannot be loaded, or is not what its group requires."""


class ModelError(MMSpecError, RuntimeError):
    """A model or checkpoint is invalid, or the model computed invalid values."""


class OutputError(MMSpecError, RuntimeError):
    """An output cannot be written although its path was allowed: the disk is full, or the device fails."""


def shorten(message: str) -> str:
    """A message as one line in which each quoted input has at most about 200 characters, and which has at most 4000.

    Of a longer input the first 200 characters and its length remain.
    """

    def cut(match: re.Match[str]) -> str:
        return f"{match[0][:LONGEST_QUOTE]}... ({len(match[0])} characters)"

    message = re.sub(r"\s+", lambda gap: " " if "\n" in gap[0] else gap[0], message)
    message = _QUOTED.sub(cut, message)
    if len(message) <= LONGEST_MESSAGE:
        return message
    return f"{message[:LONGEST_MESSAGE]}... ({len(message)} characters)"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'circle'?)"` for the closest known word, or an empty string if no word is close.

    Args:
        word: The word that the user gave.
        known: The valid words.
    """
    if len(word) > LONGEST_QUOTE:  # comparing takes time that is quadratic in the length
        return ""
    names = {k.lower(): k for k in known}
    close = difflib.get_close_matches(word.lower(), names, cutoff=0.5)
    # Among equally close words, prefer the one with the same letters: swapped letters are the most common typo.
    close.sort(key=lambda k: -sum((Counter(word.lower()) & Counter(k)).values()))
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The exception for a name that is not in `known`, with the closest name and the whole list."""
    names = sorted(known)
    return UnknownNameError(f"unknown {kind} {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}")
